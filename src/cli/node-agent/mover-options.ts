import { type Command, Option } from 'commander';
import { LOG_LEVEL_OPTION, logFormatOption } from '../log-options.ts';

/** Flags of all commands that move one volume, as Velero's agent sets them. */
export function addMoveOptions(command: Command, { hasCache }: { hasCache: boolean }): Command {
  command.requiredOption(
    '--resource-timeout <duration>',
    'how long to wait for the repository to be ready',
  );
  if (hasCache) {
    command.option(
      '--cache-volume-path <path>',
      'directory that caches metadata of the repository',
    );
  }
  return command
    .option(...LOG_LEVEL_OPTION)
    .addOption(logFormatOption())
    .addOption(new Option('--features <names>', 'accepted and ignored').hideHelp())
    .addOption(new Option('--kubeconfig <file>', 'outside a pod').hideHelp());
}
