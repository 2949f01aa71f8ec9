import { type Command, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { ClusterFlags } from '../cluster.ts';
import { withOutputForm } from '../output/format-options.ts';
import { JSON_OPTION } from '../program.ts';
import { addCancelVerb, addDeleteVerb, addDescribeVerb, addGetVerb } from './noun-verbs.ts';
import { addRestoreSpecFlags } from './create/spec-flags.ts';

export function addRestoreVerb(program: Command): void {
  const restore = program
    .command('restore')
    .description('restore backups of the cluster, and look at such restores');
  addCreateVerb(restore);
  addInPlaceVerb(restore);
  addGetVerb(restore, 'restore');
  addDescribeVerb(restore, 'restore');
  addLogsVerb(restore);
  addDeleteVerb(restore, 'restore');
  addCancelVerb(restore, 'restore');
}

function addCreateVerb(restore: Command): void {
  const create = withClusterOptions(restore.command('create'))
    .description('restore a backup, or some of it')
    .argument('[name]', 'of the Restore (default: BACKUP-YYYYMMDDhhmmss)')
    .option('-w, --wait', 'show how far it is, and return when it has ended')
    .addOption(
      new Option(
        '--dry-run',
        'make nothing; list what would be made, changed and skipped, and why',
      ).conflicts('wait'),
    );
  addRestoreSpecFlags(create);
  create
    .addHelpText(
      'after',
      `
Flags and defaults are those of "velero restore create". With --wait the exit code is 0 for Completed alone; Ctrl-C leaves the restore running.
With --dry-run the API server is asked what it would say to each object, by a dry run of its own; in namespaces and of kinds that are not there yet
nobody can be asked. Plugins of others are not asked, and no volume is touched. The exit code is 3 where something would fail; -o prints one document.
With --existing-volume-data-policy full or incremental the volume of a PVC that is there already is brought back to the backup: both read all of it and
write what differs. No pod may use it; what may use volumes is restored when they are done (docs/restore-in-place.md).

Examples:
  $ longshore restore create --from-backup before-upgrade --wait
  $ longshore restore create shop-again --from-backup shop --namespace-mappings shop:shop-copy
  $ longshore restore create --from-backup shop --existing-resource-policy update --dry-run
  $ longshore restore create --from-backup nightly-20261126 --existing-volume-data-policy full --delete-extra-files --wait
  $ longshore restore create --from-schedule nightly --include-namespaces shop --existing-resource-policy update`,
    )
    .action(async (name: string | undefined, flags: object) => {
      const { createRestore } = await import('./create/create-restore.ts');
      await createRestore(name, flags);
    });
}

function addInPlaceVerb(restore: Command): void {
  const inPlace = withClusterOptions(restore.command('in-place'))
    .description(
      'bring the volume of a PVC that exists back to a backup: compare what it holds, and write only what differs',
    )
    .argument('<backup>', 'its name')
    .argument('<claim>', 'as NAMESPACE/PVC; no pod may use it meanwhile')
    .option('--dry-run', 'write nothing; wait, and show what differs')
    .option(
      '--max-write <bytes>',
      'count first, and change nothing if more than this would be written and removed, such as 10GiB',
    )
    .option('--keep-extra', 'leave files that the backup does not have')
    .option(
      '--delete-excluded',
      'also remove files that ignore files or policies kept out of the backup',
    )
    .option(
      '--remove-first',
      'remove what the backup does not have before files are written, which makes room, and not at the end',
    )
    .option('-w, --wait', 'show how far it is, and what it did when it has ended')
    .option(...JSON_OPTION);
  withOutputForm(inPlace)
    .addHelpText(
      'after',
      `
The PVC, its volume object and their names stay as they are. A pod that begins to use the volume while it is written ends the restore. With --wait
the exit code is 0 for Completed alone; Ctrl-C leaves the restore running, and "longshore restore cancel NAMESPACE/PVC" ends it. The same command, given again, completes a restore that was stopped.

Examples:
  $ longshore restore in-place nightly-20261126 shop/data --dry-run
  $ longshore restore in-place nightly-20261126 shop/data --max-write 10GiB --wait`,
    )
    .action(async (backup: string, claim: string, flags: object) => {
      const { restoreClaimInPlace } = await import('./in-place/restore-in-place.ts');
      await restoreClaimInPlace(backup, claim, flags);
    });
}

function addLogsVerb(restore: Command): void {
  withClusterOptions(restore.command('logs'))
    .description(
      'print the log of a restore from its bucket, then what the data movers of its volumes wrote',
    )
    .argument('<name>', 'of the Restore')
    .addHelpText(
      'after',
      `
It reads the bucket itself, as "longshore backup logs" does.

Example:
  $ longshore restore logs shop-again`,
    )
    .action(async (name: string, flags: ClusterFlags) => {
      const { printLogs } = await import('./logs.ts');
      await printLogs('Restore', name, flags);
    });
}
