#!/bin/sh
# Runs with other decoders than the linear one; call again to continue what was stopped.
#
#     benchmarks/decoders.sh image results/agent 1 12 123 1234 12345
#     benchmarks/decoders.sh minigrid results/agent 1 12 123 1234 12345
set -u
task=$1 root=$2
shift 2
for seed in "$@"; do
  case $task in
    image)  # pictures of 28 x 28, one for each latent state; discriminators of one layer
      briee train lock --preset paper --decoder cnn --horizon 5 --seed "$seed" --episodes 30000 \
        --env.emission image --env.num_actions 5 --env.templates 1 --features.first-temperature 1 \
        --collect.episodes-per-level 100 --collect.buffer-size 4000 \
        --replearn.rounds 15 --replearn.discriminator-steps 32 --replearn.feature-steps 32 \
        --run-dir "$root/image-lock-h5-cnn-s$seed" --resume --replearn.hidden-sizes ;;
    minigrid)  # the whole grid; solved: every evaluation episode finds the goal, a return of 0.91 or more
      briee train MiniGrid-Empty-5x5-v0 --preset paper --decoder mlp --horizon 10 --seed "$seed" --episodes 10000 \
        --evaluation.target-return 0.91 --features.num-latents 40 --features.standardize --features.first-temperature 1 \
        --collect.episodes-per-level 10 --collect.warmup-episodes 500 --collect.buffer-size 2000 --lsvi.lam 0.1 \
        --replearn.start previous --replearn.momentum 0.9 --replearn.rounds 3 --replearn.hidden-sizes 32 \
        --replearn.discriminator-steps 16 --replearn.feature-steps 32 \
        --replearn.feature-batch 128 --replearn.discriminator-batch 128 \
        --run-dir "$root/minigrid-empty-5x5-mlp-s$seed" --resume ;;
    *) echo "unknown task $task: image or minigrid" >&2; exit 2 ;;
  esac || exit $?
done
