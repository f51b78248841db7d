"""python -m lengthen, accelerate launch -m lengthen, torchrun -m lengthen."""

from lengthen.cli import main

main()
