import { type Command, Option } from 'commander';

/**
 * Flags of `velero server` 1.18.3 (pkg/cmd/server/config/config.go) about what is not here yet.
 * They are taken, so that a Deployment of Velero's need not be changed, and named in the log when
 * they are set.
 */
const WITHOUT_EFFECT = [
  '--restore-only [boolean]',
  '--client-qps <n>',
  '--client-burst <n>',
  // Pages are as large as memory allows.
  '--client-page-size <n>',
  '--profiler-address <address>',
  '--max-concurrent-k8s-connections <n>',
  '--disable-informer-cache [boolean]',
];

/**
 * Written by `velero install` and charts of some versions, and of Velero's root command and its log
 * library: nobody misses them.
 */
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

/**
 * Names of flags that were set and change nothing here, though they would change Velero's server.
 */
export function flagsWithoutEffect(command: Command): string[] {
  return command.options
    .filter(({ flags }) => WITHOUT_EFFECT.includes(flags))
    .filter((option) => command.getOptionValueSource(option.attributeName()) === 'cli')
    .map(({ long }) => long ?? '');
}
