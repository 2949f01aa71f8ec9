import { type Command, Option } from 'commander';
import type { MoveFlags } from './move-volume.ts';
import { addMoveOptions } from './mover-options.ts';

interface DataMoverFlags extends MoveFlags {
  volumeMode: string;
  dataUpload?: string;
  dataDownload?: string;
  inPlace?: boolean;
}

export function addDataMoverCommands(program: Command): void {
  const group = program
    .command('data-mover', { hidden: true })
    .description('run by hosting pods: move one volume');
  const add = (direction: 'backup' | 'restore', flag: string): void => {
    const command = group
      .command(direction)
      .description(
        direction === 'backup'
          ? 'move a volume into its repository'
          : 'move a snapshot into a volume',
      )
      .requiredOption(
        '--volume-path <path>',
        'path where the volume is mounted, or path of its device',
      )
      .addOption(
        new Option('--volume-mode <mode>', 'of the volume')
          .choices(['Filesystem', 'Block'])
          .makeOptionMandatory(),
      )
      .requiredOption(`${flag} <name>`, 'the DataUpload or DataDownload that asks for it');
    if (direction === 'restore') {
      command.option('--in-place', 'the volume has data already, which are brought back');
    }
    addMoveOptions(command, { hasCache: true }).action(async (flags: DataMoverFlags) => {
      const { moveVolume } = await import('./move-volume.ts');
      const volume = {
        kind: direction === 'backup' ? ('DataUpload' as const) : ('DataDownload' as const),
        name: flags.dataUpload ?? flags.dataDownload ?? '',
        isBlock: flags.volumeMode === 'Block',
        isInPlace: flags.inPlace === true,
        program: `longshore-data-mover-${direction}`,
      };
      await moveVolume(volume, flags);
    });
  };
  add('backup', '--data-upload');
  add('restore', '--data-download');
}
