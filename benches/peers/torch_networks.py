"""Networks for PyTorch's side of the comparison, with parameters in the order of torchvision, timm and transformers."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
        stage = lambda i, o, stride: nn.Sequential(BasicBlock(i, o, stride), BasicBlock(o, o, 1))
        self.layer1, self.layer2 = stage(64, 64, 1), stage(64, 128, 2)
        self.layer3, self.layer4 = stage(128, 256, 2), stage(256, 512, 2)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def attend(x, heads, q, k, v):
    b, t, d = x.shape
    q, k, v = (z.view(b, t, heads, d // heads).transpose(1, 2) for z in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)


class ViTBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(d, 1e-6), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(d, 1e-6), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        x = x + self.proj(attend(x, self.heads, *self.qkv(self.norm1(x)).chunk(3, -1)))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViTTiny(nn.Module):
    def __init__(self, side, classes, d=192, depth=12, heads=3):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos_embed = nn.Parameter(torch.zeros(1, (side // 16) ** 2 + 1, d))
        self.proj = nn.Conv2d(3, d, 16, stride=16)
        self.blocks = nn.ModuleList([ViTBlock(d, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d, 1e-6), nn.Linear(d, classes)

    def forward(self, x):
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class BertLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(d, d) for _ in range(3))
        self.dense, self.norm1 = nn.Linear(d, d), nn.LayerNorm(d, 1e-12)
        self.up, self.down, self.norm2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.LayerNorm(d, 1e-12)

    def forward(self, x):
        x = self.norm1(x + self.dense(attend(x, self.heads, self.query(x), self.key(x), self.value(x))))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT with its pooler; the pooled features are the logits."""

    def __init__(self, vocabulary=30522, context=512, d=768, layers=12, heads=12):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(context, d)
        self.kinds, self.norm = nn.Embedding(2, d), nn.LayerNorm(d, 1e-12)
        self.layers = nn.ModuleList([BertLayer(d, heads) for _ in range(layers)])
        self.pooler = nn.Linear(d, d)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1])) + self.kinds(torch.zeros_like(ids))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.pooler(x[:, 0]))


class Lstm(nn.Module):
    """Two layers, and a linear layer from the last output to the classes."""

    def __init__(self, features, width, layers, classes):
        super().__init__()
        self.lstm, self.head = nn.LSTM(features, width, layers, batch_first=True), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])
