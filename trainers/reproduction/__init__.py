"""The papers' MNIST table: trained, certified and compared."""
