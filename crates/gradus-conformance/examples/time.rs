use gradus_conformance::*;
fn main(){ let b=OracleBackend::new();
for op in ["map/","sum","prod","max/","min/","any","all","arg","scan","sort","gemm","copy","fill","gather","scatter","embedding","random","unfold","fold","conv","max_pool","avg_pool","softmax","normalize","attention","cross","sgd","adam","memory","refusals"] {
 let t=std::time::Instant::now(); let r=only(&b,op); println!("{op:12} {:6} calls {:?}", r.cases, t.elapsed()); } }
