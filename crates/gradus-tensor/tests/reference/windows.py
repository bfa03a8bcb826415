# Writes windows.txt: what PyTorch gives for fixed inputs, as `(name, shape, values)`.
#     python windows.py > windows.txt
import torch, torch.nn.functional as F

torch.set_default_dtype(torch.float64)
print("[")
def seq(n, a=1.7, b=0.3): 
    return (torch.arange(n, dtype=torch.float64)*a+b).sin()
def show(name, t):
    print(f"    (\"{name}\", &{list(t.shape)}, &{[round(v, 12) for v in t.flatten().tolist()]}),")
x=seq(2*4*5).reshape(2,4,5); w=seq(4*3*3,0.9,0.2).reshape(4,3,3)
show("ct1", F.conv_transpose1d(x,w,bias=seq(6),stride=2,padding=1,output_padding=1,groups=2,dilation=1))
x=seq(1*2*3*2).reshape(1,2,3,2); w=seq(2*1*2*2,0.9,0.2).reshape(2,1,2,2)
show("ct2", F.conv_transpose2d(x,w,stride=(1,2),padding=(0,1),output_padding=(1,0),dilation=(2,3)))
show("ct2b", F.conv_transpose2d(x,w,stride=(1,1),padding=(0,0),output_padding=(2,0),dilation=(3,1)))
show("ct2c", F.conv_transpose2d(x,w,stride=(1,1),padding=(1,0),output_padding=(2,1),dilation=(3,2)))
x=seq(2*2*2*2).reshape(1,2,2,2,2); w=seq(2*1*2*1*2,0.9,0.2).reshape(2,1,2,1,2)
show("ct3", F.conv_transpose3d(x,w,stride=2,padding=(1,0,0),output_padding=(0,1,0)))
x=seq(1*2*3*3*3).reshape(1,2,3,3,3); w=seq(2*2*2*2*1,0.9,0.2).reshape(2,2,2,2,1)
show("c3", F.conv3d(x,w,bias=seq(2),stride=(1,2,2),padding=(1,0,1)))
x=seq(2*4*6).reshape(2,4,6); w=seq(4*2*3,0.9,0.2).reshape(4,2,3)
show("c1", F.conv1d(x,w,stride=2,padding=2,dilation=2,groups=2))
show("c1asym", F.conv1d(F.pad(x,(2,1)),w,groups=2))
x=seq(1*2*3*4).reshape(1,2,3,4)
u=F.unfold(x,(2,2),dilation=(1,2),padding=(1,0),stride=(2,1)); show("unfold",u)
show("fold", F.fold(u,(3,4),(2,2),dilation=(1,2),padding=(1,0),stride=(2,1)))
x=seq(1*1*5*6).reshape(1,1,5,6)
v,i=F.max_pool2d(x,(2,3),stride=(2,2),padding=(1,1),ceil_mode=True,return_indices=True); show("mp",v); show("mpi",i.double())
v,i=F.max_pool2d(x,(2,2),stride=(2,3),dilation=(2,1),ceil_mode=True,return_indices=True); show("mpd",v); show("mpdi",i.double())
for inc in (True,False):
    show("ap%s"%inc, F.avg_pool2d(x,(2,3),stride=(2,2),padding=(1,1),ceil_mode=True,count_include_pad=inc))
    show("ap1%s"%inc, F.avg_pool1d(x.reshape(1,5,6),4,stride=3,padding=2,ceil_mode=True,count_include_pad=inc))
    show("ap1b%s"%inc, F.avg_pool1d(seq(10).reshape(1,2,5),2,stride=3,padding=1,ceil_mode=True,count_include_pad=inc))
show("ap3", F.avg_pool3d(seq(36).reshape(1,1,3,3,4),(2,2,3),stride=(2,1,2),padding=(1,0,1),ceil_mode=True))
v,i=F.max_pool3d(seq(36).reshape(1,1,3,3,4),(2,2,3),stride=(2,1,2),padding=(1,0,1),ceil_mode=True,return_indices=True);show("mp3",v); show("mp3i",i.double())
x=seq(1*2*5*7).reshape(1,2,5,7)
show("aap", F.adaptive_avg_pool2d(x,(3,4)))
v,i=F.adaptive_max_pool2d(x,(3,4),return_indices=True); show("amp",v); show("ampi",i.double())
show("aap1", F.adaptive_avg_pool1d(seq(3).reshape(1,1,3),5))
x=seq(2*4*3).reshape(2,4,3)
show("gn", F.group_norm(x,2,seq(4,.5,.1),seq(4,.3,.2),1e-5))
show("in", F.instance_norm(x,weight=seq(4,.5,.1),bias=seq(4,.3,.2),eps=1e-5))
show("rms", F.rms_norm(x,(4,3),seq(12,.5,.1).reshape(4,3),1e-5))
show("lrn", F.local_response_norm(x,3,0.5,0.75,2.0))
show("n3", F.normalize(x,3.0,1,1e-12)); show("n2", F.normalize(x,2.0,-1)); show("ninf", F.normalize(x,float('inf'),1))
q=seq(2*4*3*2).reshape(2,4,3,2);k=seq(2*2*5*2,.9,.2).reshape(2,2,5,2);v=seq(2*2*5*3,.7,.1).reshape(2,2,5,3)
show("sdpa", F.scaled_dot_product_attention(q,k,v,enable_gqa=True))
m=seq(3*5,.77).reshape(3,5)
show("sdpam", F.scaled_dot_product_attention(q,k,v,attn_mask=m,enable_gqa=True,scale=-0.7))
show("sdpac", F.scaled_dot_product_attention(q,k,v,is_causal=True,enable_gqa=True))
bm=torch.ones(3,5,dtype=torch.bool).tril(2); bm2=bm
show("sdpabr", F.scaled_dot_product_attention(q,k,v,attn_mask=bm,enable_gqa=True))
# Rows of large scores, whose weights are equal.
lm=torch.tensor([-1e300,torch.finfo(torch.float64).min,1e300]).reshape(3,1)
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    x=[t.clone().requires_grad_() for t in (q,k,v)]
    y=F.scaled_dot_product_attention(*x,attn_mask=lm.expand(3,5),enable_gqa=True)
    show("sdpal", y)
    for name,g in zip("qkv",torch.autograd.grad((y*seq(2*4*3*3,.6,.2).reshape(y.shape)).sum(),x)):
        show("sdpal"+name, g)
print("]")
