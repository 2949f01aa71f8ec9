import { type Command, Option } from 'commander';
import type { DataMoverFlags } from './move-volume.ts';

export function addDataMoverCommands(program: Command): void {
  const group = program
    .command('data-mover', { hidden: true })
    .description('what hosting pods run: moves one volume');
  const add = (direction: 'backup' | 'restore', flag: string): void => {
    group
      .command(direction)
      .description(
        direction === 'backup' ? 'a volume into its repository' : 'a snapshot into a volume',
      )
      .requiredOption('--volume-path <path>', 'where the volume is mounted, or its device')
      .addOption(
        new Option('--volume-mode <mode>', 'of the volume')
          .choices(['Filesystem', 'Block'])
          .makeOptionMandatory(),
      )
      .requiredOption(`${flag} <name>`, 'the CR that asks for it')
      .requiredOption(
        '--resource-timeout <duration>',
        'how long the repository may take to be ready',
      )
      .option('--cache-volume-path <path>', 'where metadata of the repository is kept')
      .option('--log-level <level>', 'debug, info, warning or error', 'info')
      .addOption(
        new Option('--log-format <format>', 'of the log').choices(['text', 'json']).default('text'),
      )
      .addOption(new Option('--features <names>', 'accepted and not used').hideHelp())
      .addOption(new Option('--kubeconfig <file>', 'outside a pod').hideHelp())
      .action(async (flags: DataMoverFlags) => {
        const { moveVolume } = await import('./move-volume.ts');
        await moveVolume(direction, flags);
      });
  };
  add('backup', '--data-upload');
  add('restore', '--data-download');
}
