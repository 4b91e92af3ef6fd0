"""Networks and training steps in PyTorch, that the benchmarks measure against.

The steps follow the published loops, each on random images of its own.
"""

import contextlib

SIGMA = 1.0


def torch_lenet():
    """LeNet as `rs_keras.models.lenet` has it."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def torch_resnet20():
    """ResNet-20 as `rs_keras.models.cifar_resnet(20)` has it."""
    from torch import nn

    def unit(before, after, size, strides):
        pad = size // 2
        convolution = nn.Conv2d(before, after, size, strides, pad, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(after))

    class Block(nn.Module):
        def __init__(self, before, after, strides):
            super().__init__()
            self.first = unit(before, after, 3, strides)
            self.second = unit(after, after, 3, 1)
            same = before == after
            self.short = nn.Identity() if same else unit(before, after, 1, 2)

        def forward(self, x):
            y = self.second(self.first(x).relu_())
            return (y + self.short(x)).relu_()

    widths = [16, *[16] * 3, *[32] * 3, *[64] * 3]
    blocks = [
        Block(before, after, 1 if before == after else 2)
        for before, after in zip(widths, widths[1:], strict=False)
    ]
    return nn.Sequential(
        unit(3, 16, 3, 1),
        nn.ReLU(inplace=True),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class TorchStep:
    """A method's training step, on its own images.

    Args:
        network: Of `torch_lenet`, `torch_resnet20`.
        case: Of `methods.CASES`.
        shape: Of an image, (H, W, C).
        bfloat16: Whether to compute under autocast.
        channels_last: Whether tensors are stored so.
        compiled: Whether `torch.compile` makes the network.
    """

    def __init__(
        self,
        network,
        case,
        shape,
        bfloat16=False,
        channels_last=False,
        compiled=False,
    ):
        import torch

        self.case, self.bfloat16 = case, bfloat16
        height, width, channels = shape
        self.images = torch.rand(case.batch, channels, height, width)
        self.labels = torch.randint(0, 10, (case.batch,))
        if channels_last:
            network = network.to(memory_format=torch.channels_last)
            self.images = self.images.contiguous(
                memory_format=torch.channels_last
            )
        self.network = torch.compile(network) if compiled else network
        self.optimizer = torch.optim.SGD(
            network.parameters(), 0.01, momentum=0.9, weight_decay=1e-4
        )

    def __call__(self):
        loss = getattr(self, self.case.method.lower())()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def logits(self, x):
        import torch

        context = contextlib.nullcontext()
        if self.bfloat16:
            context = torch.autocast("cpu", torch.bfloat16)
        with context:
            out = self.network(x)
        return out.float()

    def of_copies(self, images, noises):
        """Logits of all copies, in one pass: [m, B, classes]."""
        import torch

        copies = torch.cat([images + noise for noise in noises])
        return self.logits(copies).view(len(noises), len(self.images), -1)

    def noises(self, count):
        import torch

        return [torch.randn_like(self.images) * SIGMA for _ in range(count)]

    def gaussian(self):
        from torch.nn import functional

        [noise] = self.noises(1)
        return functional.cross_entropy(
            self.logits(self.images + noise), self.labels
        )

    def smoothmix(self):
        import torch
        from torch.nn import functional

        given = self.case.arguments
        steps, size = given["steps"], given.get("step_size", 1.0)
        noises = self.noises(given.get("num_noise", 4))
        self.network.eval()
        x = first = self.images.clone()
        for step in range(steps):
            if step == 1:
                first = x.detach().clone()
            x = x.detach().requires_grad_(True)
            mean = self.of_copies(x, noises).softmax(-1).mean(0)
            loss = functional.nll_loss(
                mean.clamp(min=1e-20).log(), self.labels, reduction="sum"
            )
            (gradient,) = torch.autograd.grad(loss, x)
            norm = gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            x = (x + size * gradient / (norm + 1e-8)).clamp(0, 1)
        self.network.train()
        adversarial = x.detach()
        outputs = self.of_copies(first, noises)
        mean = outputs.softmax(-1).mean(0)
        share = torch.rand(len(mean), 1) / 2
        wide = share.view(-1, 1, 1, 1)
        mixed = (1 - wide) * first + wide * adversarial
        target = (1 - share) * mean + share / 10
        right = (mean.argmax(1) == self.labels).float()
        mixture = functional.kl_div(
            self.of_copies(mixed, noises).log_softmax(-1),
            target.expand_as(outputs),
            reduction="none",
        ).sum(-1)
        plain = functional.cross_entropy(
            outputs.flatten(0, 1), self.labels.repeat(len(noises))
        )
        return plain + 5.0 * (right * mixture.mean(0)).mean()

    def catrs(self):
        """With a teacher that is sure of the labels: all are attacked."""
        import torch
        from torch.nn import functional

        given = self.case.arguments
        noises = torch.stack(self.noises(given.get("num_noise", 4)))
        outputs = self.of_copies(self.images, noises)
        hot = functional.one_hot(self.labels, 10).float()
        losses = functional.cross_entropy(
            outputs.flatten(0, 1),
            self.labels.repeat(len(noises)),
            reduction="none",
        ).view(len(noises), -1)

        def divergence(moved):
            predicted = self.of_copies(self.images, moved).log_softmax(-1)
            return -(hot * predicted).sum(-1)

        self.network.eval()
        steps, x = given["steps"], noises
        mean = noises.flatten(2).mean(2)[..., None, None, None]
        scale = noises.flatten(2).square().mean(2).sqrt()[..., None, None, None]
        for _ in range(steps):
            x = x.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(divergence(x).sum(), x)
            norm = gradient.flatten(2).norm(dim=2)[..., None, None, None]
            moved = x + 2.0 / steps * gradient / (norm + 1e-8) - noises
            norm = moved.flatten(2).norm(dim=2)[..., None, None, None]
            x = noises + moved * (1 / norm.clamp(min=1e-12)).clamp(max=1)
            center = x.flatten(2).mean(2)[..., None, None, None]
            spread = x.flatten(2).square().mean(2).sqrt()[..., None, None, None]
            x = mean + (x - center) / spread * scale
        self.network.train()
        worst = divergence(x.detach()).max(0).values
        return losses.mean() + worst.mean()
