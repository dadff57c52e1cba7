"""What other libraries call covey's fields. Only suggestions use this: `learning_rate=1e-3` is refused with the hint
`algorithm.lr`.

Each line: covey's fields, then the names. A name may occur in several lines; of those fields, the ones that the chosen
algorithm, task and model have are suggested.
"""

from __future__ import annotations

_TABLE = """
algorithm.lr: learning_rate lr_actor actor_lr lr_critic critic_lr policy_lr pi_lr q_lr vf_lr step_size
algorithm.lr_schedule: anneal_lr lr_decay lr_annealing learning_rate_schedule decay_learning_rates use_linear_lr_decay
algorithm.adam_eps: adam_epsilon opti_eps optim_eps optimizer_eps adam_extra_params eps
algorithm.max_grad_norm: grad_norm grad_clip clip_grad clip_grad_norm clip_grad_val grad_norm_clip grad_norm_clipping
algorithm.gamma: discount discount_factor discount_rate
algorithm.gae_lambda algorithm.vtrace_lambda algorithm.q_lambda: lambda lambda_ lam lmbda gae_lam td_lambda
algorithm.clip: clip_eps clip_range clip_epsilon eps_clip clip_param clip_coef clip_ratio cliprange ratio_clip
algorithm.value_clip: clip_value clip_vloss clip_range_vf vf_clip_param clip_value_loss
algorithm.value_coef: vf_coef value_loss_coef value_loss_coeff vf_loss_coeff critic_coef value_coeff
algorithm.entropy_coef: ent_coef entropy_coeff entropy_cost entropy_beta
algorithm.epochs: n_epochs num_epochs ppo_epochs ppo_epoch update_epochs k_epochs num_sgd_iter n_minibatch_iters
algorithm.num_minibatches: n_minibatches nminibatches num_mini_batch num_mini_batches minibatches
algorithm.minibatch_size: mini_batch_size sgd_minibatch_size on_policy_minibatch_size
experiment.buffer.batch_size algorithm.minibatch_size: batch_size train_batch_size off_policy_train_batch_size
algorithm.sequence_length: seq_len seq_length rnn_seq_len chunk_length data_chunk_length max_seq_len
algorithm.advantage_normalisation: norm_adv normalize_advantage normalize_advantages standardise_advantages
algorithm.observation_normalisation: norm_obs normalize_obs normalize_observations use_obs_norm obs_norm
algorithm.popart: use_popart
algorithm.rho_bar algorithm.c_bar: clip_rho_threshold clip_pg_rho_threshold vtrace_clip rho_clip c_clip
algorithm.value_normalisation: norm_value use_valuenorm use_popart popart standardise_returns standardise_rewards
algorithm.share_parameters: share_policy_params parameter_sharing param_sharing share_policy share_param
algorithm.share_critic_parameters: share_param_critic share_critic
algorithm.agent_ids: agent_id add_agent_id obs_agent_id use_agent_id
algorithm.critic_sees: centralized_critic central_critic use_centralized_v state_critic
algorithm.double_q: double_dqn use_double double double_ddqn
algorithm.mixer_size: mixing_embed_dim mixing_hidden mixer_hidden_dim
algorithm.tau: polyak polyak_tau target_update_tau soft_update_tau soft_target_update_tau target_tau
algorithm.target_interval: target_update target_update_interval target_update_freq target_network_frequency
algorithm.target_interval: hard_target_update_frequency target_network_update_freq target_update_interval_or_tau
algorithm.n_step: nstep n_steps_return num_bootstrap_steps
algorithm.epsilon_start algorithm.noise_start: epsilon eps eps_start epsilon_init start_e initial_epsilon
algorithm.epsilon_start algorithm.noise_start: exploration_initial_eps exploration_eps_init eps_init
algorithm.epsilon_end algorithm.noise_end: eps_end epsilon_final epsilon_finish end_e final_epsilon min_epsilon
algorithm.epsilon_end algorithm.noise_end: exploration_final_eps exploration_eps_end
algorithm.epsilon_fraction algorithm.noise_fraction: exploration_fraction epsilon_decay eps_decay epsilon_anneal_time
algorithm.noise_start: exploration_noise sigma sigma_init act_noise noise
algorithm.target_noise: target_policy_noise policy_noise
algorithm.alpha: temperature init_alpha alpha_init init_temperature
algorithm.learn_alpha: autotune auto_alpha automatic_entropy_tuning fixed_alpha
experiment.frames: total_timesteps total_steps total_frames timesteps num_timesteps max_n_frames num_frames n_frames
experiment.frames: num_env_steps training_steps t_max steps num_steps_total max_steps max_frames
experiment.num_envs: n_envs num_environments n_environments envs nenvs num_workers n_rollout_threads parallel_envs
experiment.num_envs: batch_size_run on_policy_n_envs_per_worker off_policy_n_envs_per_worker num_env
experiment.rollout_length: n_steps num_steps unroll_length rollout_steps rollout_fragment_length horizon_length
experiment.rollout_length: collected_frames_per_batch on_policy_collected_frames_per_batch
experiment.updates: num_updates n_updates gradient_steps updates_per_step utd n_optimizer_steps train_freq
experiment.updates: off_policy_n_optimizer_steps epochs
experiment.random_frames: learning_starts warmup warmup_steps start_steps init_random_frames random_steps
experiment.random_frames: off_policy_init_random_frames exploration_steps
experiment.buffer.size: buffer_size replay_size memory_size memory_capacity capacity replay_buffer_size
experiment.buffer.size: off_policy_memory_size
experiment.buffer.prioritised: per use_per prioritized prioritized_replay prioritised_replay
experiment.evaluation_interval: eval_interval eval_freq evaluation_freq evaluation_frequency test_interval eval_every
experiment.evaluation_episodes: eval_episodes n_eval_episodes num_eval_episodes test_nepisode num_evaluation_episodes
experiment.evaluation_deterministic: deterministic greedy evaluation_greedily test_greedy
experiment.checkpoint_interval: save_interval save_freq checkpoint_freq save_every save_model_interval
experiment.checkpoint_keep: keep_checkpoints_num max_to_keep max_checkpoints
experiment.platform: device cuda use_gpu gpu use_cuda train_device sampling_device accelerator
experiment.devices: n_devices num_devices num_gpus n_gpus
experiment.loggers: logger log use_wandb wandb use_tensorboard tensorboard use_tb track
experiment.shaping_frames: reward_shaping_horizon shaping_horizon
model.layers: hidden_sizes hidden_dims hidden_layers net_arch num_cells layer_sizes fcnet_hiddens units mlp_units
model.hidden_size model.layers: hidden hidden_size hidden_dim rnn_hidden_dim rnn_hidden_size gru_hidden_dim hidden_units
model.hidden_size model.layers: fc_dim_size width embed_dim size
model.channels: filters out_channels cnn_channels
model.activation: activation_fn activation_class act nonlinearity
model.norm: layer_norm use_layer_norm normalization
model.initialiser: init orthogonal_init use_orthogonal kernel_init weight_init
task.n_agents task.num_agents task.num_searchers task.num_vehicles: n_agents num_agents nagents agents n_players
task.num_good_agents task.num_adversaries task.num_predators task.n_blue_agents: n_agents num_agents nagents agents
task.time_limit: max_steps max_episode_steps max_cycles episode_length episode_limit horizon max_episode_length
task.continuous_actions: continuous discrete_actions continuous_action
task.actions: continuous_actions continuous action_type act_type
task.reward: shared_reward share_reward shared_rew common_reward cooperative_reward reward_aggregation
seed: random_seed rng_seed
seeds: n_seeds num_seeds n_runs
run_dir: log_dir logdir output output_dir save_dir save_folder results_dir out experiment_dir
task: env env_name environment env_id scenario scenario_name map_name game
algorithm: alg algo algorithm_name agent
model: network policy actor_model model_name net
critic_model: critic critic_network
init_from: pretrained load load_path restore restore_file checkpoint load_model checkpoint_path
config_dir: config config_path config_name
"""


def _read(table: str) -> dict[str, tuple[str, ...]]:
    fields: dict[str, tuple[str, ...]] = {}
    for line in table.strip().splitlines():
        covey, _, others = line.partition(":")
        for name in others.split():
            fields[name] = (*fields.get(name, ()), *covey.split())
    return fields


ALIASES = _read(_TABLE)


def fields_called(name: str) -> tuple[str, ...]:
    """The fields that other libraries call `name`, ignoring case: `fields_called("n_envs")`."""
    return ALIASES.get(name.lower().replace("-", "_"), ())
