import { type Command, Option } from 'commander';

/**
 * Flags of `velero server` 1.18.3 (pkg/cmd/server/config/config.go) for features that do not exist
 * here. They are accepted, so that Velero's Deployments need no change. The log names them if they
 * are set.
 */
const WITHOUT_EFFECT = [
  '--restore-only [boolean]',
  '--client-qps <n>',
  '--client-burst <n>',
  // The page size here depends on memory.
  '--client-page-size <n>',
  '--profiler-address <address>',
  '--max-concurrent-k8s-connections <n>',
  '--disable-informer-cache [boolean]',
];

/** From `velero install`, some charts, Velero's root command and its log library. No warning. */
const IGNORED = [
  '--keep-latest-maintenance-jobs <n>',
  '--maintenance-job-cpu-request <quantity>',
  '--maintenance-job-mem-request <quantity>',
  '--maintenance-job-cpu-limit <quantity>',
  '--maintenance-job-mem-limit <quantity>',
  '--colorized [boolean]',
  '--add_dir_header [boolean]',
  '--alsologtostderr [boolean]',
  '--alsologtostderrthreshold <level>',
  '--legacy_stderr_threshold_behavior [boolean]',
  '--log_backtrace_at <place>',
  '--log_dir <directory>',
  '--log_file <file>',
  '--log_file_max_size <n>',
  '--logtostderr [boolean]',
  '--one_output [boolean]',
  '--skip_headers [boolean]',
  '--skip_log_headers [boolean]',
  '--stderrthreshold <level>',
  '-v, --v <level>',
  '--vmodule <levels>',
];

export function addVeleroServerFlags(command: Command): void {
  for (const flags of [...WITHOUT_EFFECT, ...IGNORED]) {
    command.addOption(new Option(flags, 'accepted and ignored').hideHelp());
  }
}

/** Flags that were set and have no effect here, but would change Velero's server. */
export function flagsWithoutEffect(command: Command): string[] {
  return command.options
    .filter(({ flags }) => WITHOUT_EFFECT.includes(flags))
    .filter((option) => command.getOptionValueSource(option.attributeName()) === 'cli')
    .map(({ long }) => long ?? '');
}
