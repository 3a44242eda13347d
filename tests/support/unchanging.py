"""The tests that go from end to end and may not change: whoever rebuilds a room finds here what must stay green as it stands.

By what they keep; a file, and the names of its tests.
"""

UNCHANGING: dict[str, dict[str, tuple[str, ...]]] = {
    "modes are equal bit for bit": {
        "tests/training/test_run_modes.py": (
            "test_every_update_and_validation_is_told",
            "test_a_clip_damaged_after_the_scan_is_replaced_and_told",
            "test_two_devices_and_codes_in_memory_change_nothing",
            "test_a_producer_killed_twice_and_codes_on_disk_change_nothing",
        ),
        "tests/training/test_run_asynchronously.py": ("test_a_run_that_does_not_wait_gives_the_same_losses",),
        "tests/training/test_run_auto.py": ("test_measuring_changes_nothing_and_is_done_once",),
        "tests/training/test_run_decoder.py": ("test_every_mode_trains_the_same_decoder",),
        "tests/training/test_run_cards.py": (
            "test_the_losses_weights_and_clips_are_those_of_one_device",
            "test_whoever_prepares_the_run_is_the_same",
        ),
        "tests/test_dual_gpu_device_placement.py": (
            "test_the_data_device_prepares_and_the_model_device_trains",
            "test_ids_in_reverse_order_do_not_swap_the_roles",
        ),
    },
    "kills, full disks and hangs cost nothing but time": {
        "tests/training/test_run_interrupted.py": (
            "test_a_run_killed_anywhere_and_resumed_in_other_modes_is_the_unbroken_run",
            "test_ctrl_c_and_a_kill_while_the_codec_is_trained_change_nothing",
        ),
        "tests/training/test_run_soak.py": (
            "test_twenty_kills_of_the_trainer_change_nothing",
            "test_twenty_kills_of_the_producer_change_nothing",
            "test_a_producer_without_enough_memory_goes_on_with_fewer_clips_at_a_time",
        ),
        "tests/training/test_run_cluster.py": (
            "test_when_a_trainer_dies_all_go_on_from_the_last_checkpoint_with_the_losses_of_one_process",
            "test_a_cluster_that_lost_a_trainer_and_its_driver_tells_the_story_of_one_that_did_not",
            "test_a_driver_that_is_asked_to_stop_has_all_save_and_stop_at_the_same_update",
        ),
        "tests/training/test_run_disk_full.py": (
            "test_the_error_says_what_is_needed_and_the_older_checkpoints_are_as_they_were",
            "test_with_room_again_the_run_is_the_unbroken_run",
        ),
        "tests/training/test_run_faults.py": (
            "test_gradients_that_do_not_fit_are_computed_in_halves",
            "test_an_update_that_does_not_fit_is_done_again_from_the_last_checkpoint",
            "test_a_validation_that_cannot_be_made_leaves_a_saved_run_that_makes_it_up",
            "test_a_signal_before_the_first_update_ends_a_run_at_once_and_says_how_to_go_on",
            "test_a_signal_between_micro_batches_saves_the_last_whole_update",
            "test_a_run_that_hangs_is_named_and_ended",
            "test_a_process_that_hangs_ends_with_the_stage_its_stack_and_the_way_on",
            "test_a_leak_is_found_and_named_by_its_phase_within_200_steps",
        ),
        "tests/checkpoints/test_store_kills.py": (
            "test_a_kill_before_any_line_of_saving_leaves_the_old_or_the_new_one",
        ),
        "tests/data/test_code_cache.py": (
            "test_writers_at_the_same_time_lose_nothing_and_one_that_is_killed_only_what_it_had_not_written",
        ),
        "tests/test_writing.py": ("test_a_writer_killed_anywhere_leaves_the_old_or_the_new",),
    },
    "plans": {
        "tests/cli/test_train_command.py": (
            "test_print_plan_of_a_rehearsal",
            "test_print_plan_on_real_ids",
            "test_insufficient_gpus_names_what_is_there_and_the_command_that_works",
        ),
        "tests/devices/test_plan.py": (
            "test_dual_keeps_the_roles_in_any_order_of_ids",
            "test_isolated_gives_each_process_one_card_with_its_limit",
            "test_what_cannot_be_had_is_an_error_that_says_what_can",
            "test_cards_that_do_not_exist_are_an_error_with_the_command_that_works",
            "test_visible_devices_of_a_container_shift_the_index_but_not_the_id",
            "test_rehearsals_have_the_same_modes_on_logical_cpus",
        ),
        "tests/test_memory_isolation.py": (
            "test_each_process_sees_one_card_with_its_own_limit",
            "test_a_limit_that_does_not_fit_is_refused_before_anything_starts",
        ),
    },
    "what a run that goes on may change": {
        "tests/training/test_resume_rules.py": (
            "test_every_setting_has_one_rule",
            "test_how_long_and_by_what_means_may_change",
            "test_what_would_change_the_result_may_not_change_once_something_is_saved",
            "test_the_refusal_shows_old_and_new_values_and_the_ways_out",
        ),
        "tests/training/test_run_rules.py": (
            "test_a_finished_run_says_so_and_what_would_change_its_result_is_refused",
            "test_a_run_killed_after_its_last_checkpoint_is_brought_to_its_end",
            "test_a_run_can_be_made_longer_and_read_in_another_way_and_reset",
        ),
        "tests/training/test_run_ranks.py": (
            "test_a_run_that_ended_early_has_its_best_and_goes_on_with_its_own_codec_only",
        ),
        "tests/training/test_run_decoder.py": ("test_a_resumed_run_is_the_unbroken_one_to_the_last_bit",),
    },
    "promised names": {
        "tests/cli/test_train_command.py": (
            "test_help_lists_every_promised_flag",
            "test_both_commands_are_the_same",
        ),
        "tests/config/test_sources.py": (
            "test_every_promised_flag_sets_its_setting",
            "test_every_flag_has_a_yaml_key",
        ),
        "tests/test_intelligent_gpu_pipeline.py": (
            "test_promised_defaults",
            "test_flags_reach_the_settings",
            "test_one_id_alone_is_an_error",
        ),
        "tests/test_memory_isolation.py": (
            "test_the_trainer_trains_on_the_plan_in_force_and_tells_its_true_values",
        ),
        "tests/training/test_isolated_trainer.py": (
            "test_a_script_without_a_main_guard_trains_with_a_producer_of_its_own_and_again_from_a_checkpoint",
            "test_a_dataset_gets_its_options_before_it_is_prefetched_to_the_data_device",
        ),
        "tests/training/test_examples.py": (
            "test_the_python_example_trains_and_says_the_second_time_that_it_is_done",
            "test_the_shell_example_shows_its_plan_and_trains",
        ),
        "tests/data/test_dataset_optimizer.py": ("test_the_summary_reads_back_what_is_set",),
    },
    "lines people look for in the log": {
        "tests/devices/test_runtime.py": (
            "test_the_log_on_two_gpus_has_the_lines_people_look_for",
            "test_the_log_of_an_isolated_trainer_speaks_of_its_one_card",
        ),
        "tests/pipeline/test_batches.py": ("test_the_log_says_what_is_in_force",),
    },
    "blocks of the pages": {
        "tests/docs/test_blocks.py": ("test_commands_parse", "test_yaml_is_a_configuration"),
        "tests/docs/test_block_runs.py": ("test_a_block_runs",),
    },
}  # fmt: skip
