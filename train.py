"""Train a Helmholtz machine: `python train.py [resume=RUN|auto] [key=value ...]`.

`python train.py --help` lists the groups. The program is nws/programs/train.py.
"""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.train")
