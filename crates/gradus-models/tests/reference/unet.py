"""The U-Net of `models.py`: no package of PyPI has it under these names."""

import torch
from torch import nn


class Convs(nn.Module):
    def __init__(self, inputs, inside, outputs):
        super().__init__()
        layers = []
        for a, b in [(inputs, inside), (inside, outputs)]:
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.double_conv = nn.Sequential(*layers)

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), Convs(inputs, outputs, outputs))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, inputs, outputs, bilinear):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = Convs(inputs, inputs // 2, outputs)
        else:
            self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
            self.conv = Convs(inputs, outputs, outputs)

    def forward(self, x, skip):
        x = self.up(x)
        rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        x = nn.functional.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([skip, x], 1))


class Out(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, channels, classes, width=64, bilinear=False):
        super().__init__()
        half = 2 if bilinear else 1
        self.inc = Convs(channels, width, width)
        self.down1, self.down2, self.down3 = (Down(width << i, width << (i + 1)) for i in range(3))
        self.down4 = Down(8 * width, 16 * width // half)
        self.up1 = Up(16 * width, 8 * width // half, bilinear)
        self.up2 = Up(8 * width, 4 * width // half, bilinear)
        self.up3 = Up(4 * width, 2 * width // half, bilinear)
        self.up4 = Up(2 * width, width, bilinear)
        self.outc = Out(width, classes)

    def forward(self, x):
        seen = [self.inc(x)]
        for down in [self.down1, self.down2, self.down3, self.down4]:
            seen.append(down(seen[-1]))
        x = seen.pop()
        for up in [self.up1, self.up2, self.up3, self.up4]:
            x = up(x, seen.pop())
        return self.outc(x)
