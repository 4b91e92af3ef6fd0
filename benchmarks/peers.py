"""Networks of the libraries that the benchmarks measure against."""


def torch_lenet():
    """LeNet as `rs_keras.models.lenet` has it, in PyTorch."""
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
