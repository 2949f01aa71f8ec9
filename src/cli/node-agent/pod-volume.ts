import type { Command } from 'commander';
import { addMoveOptions } from './mover-options.ts';
import type { MoveFlags } from './move-volume.ts';
import { UsageError } from '../usage-error.ts';

interface PodVolumeFlags extends MoveFlags {
  podVolumeBackup?: string;
  podVolumeRestore?: string;
}

/** Run by hosting pods of file-system backups, also by those of Velero's node-agent. */
export function addPodVolumeCommands(program: Command): void {
  const group = program
    .command('pod-volume', { hidden: true })
    .description('run by hosting pods: move one volume of a running pod');
  const backup = group
    .command('backup')
    .description('move a volume of a pod into its repository')
    .requiredOption('--volume-path <path>', 'path where the volume is mounted')
    .requiredOption('--pod-volume-backup <name>', 'the PodVolumeBackup that asks for it');
  addMoveOptions(backup, { hasCache: false }).action((flags: PodVolumeFlags) =>
    move('PodVolumeBackup', flags.podVolumeBackup, flags),
  );
  const restore = group
    .command('restore')
    .description('move a snapshot into a volume of a pod that waits for it')
    .requiredOption('--volume-path <path>', 'path where the volume is mounted')
    .requiredOption('--pod-volume-restore <name>', 'the PodVolumeRestore that asks for it');
  addMoveOptions(restore, { hasCache: true }).action((flags: PodVolumeFlags) =>
    move('PodVolumeRestore', flags.podVolumeRestore, flags),
  );
}

async function move(
  kind: 'PodVolumeBackup' | 'PodVolumeRestore',
  name: string | undefined,
  flags: PodVolumeFlags,
): Promise<void> {
  if (!name) throw new UsageError(`the name of the ${kind} is empty`);
  if (flags.volumePath === '') throw new UsageError('--volume-path is empty');
  const { moveVolume } = await import('./move-volume.ts');
  const program = `longshore-pod-volume-${kind === 'PodVolumeBackup' ? 'backup' : 'restore'}`;
  await moveVolume({ kind, name, isBlock: false, program }, flags);
}
