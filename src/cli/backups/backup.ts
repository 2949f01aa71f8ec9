import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { ClusterFlags } from '../cluster.ts';
import { passwordFilesOption } from '../password.ts';
import type { ExportFlags } from './export.ts';
import { addCancelVerb, addDeleteVerb, addDescribeVerb, addGetVerb } from './noun-verbs.ts';
import { addBackupSpecFlags } from './create/spec-flags.ts';

export function addBackupVerb(program: Command): void {
  const backup = program
    .command('backup')
    .description('make, look at, cancel and delete backups of the cluster');
  addCreateVerb(backup);
  addGetVerb(backup, 'backup');
  addDescribeVerb(backup, 'backup');
  addLogsVerb(backup);
  addExportVerb(backup);
  addDeleteVerb(backup, 'backup');
  addCancelVerb(backup, 'backup');
}

function addCreateVerb(backup: Command): void {
  const create = withClusterOptions(backup.command('create'))
    .description('back up the cluster, or some of it')
    .argument('[name]', 'of the Backup; with --from-schedule one is made up without it')
    .option('--from-schedule <name>', 'take what the template of this Schedule says')
    .option('-w, --wait', 'show how far it is, and return when it has ended');
  addBackupSpecFlags(create);
  create
    .addHelpText(
      'after',
      `
Flags and defaults are those of "velero backup create". With --wait the exit code is 0 for Completed alone; Ctrl-C leaves the backup running.

Examples:
  $ longshore backup create before-upgrade --snapshot-move-data --wait
  $ longshore backup create shop --include-namespaces shop --ttl 48h
  $ longshore backup create --from-schedule nightly
  $ longshore backup create test --snapshot-volumes=false -o yaml`,
    )
    .action(async (name: string | undefined, flags: object) => {
      const { createBackup } = await import('./create/create.ts');
      await createBackup(name, flags);
    });
}

function addLogsVerb(backup: Command): void {
  withClusterOptions(backup.command('logs'))
    .description(
      'print the log of a backup from its bucket, then what the data movers of its volumes wrote',
    )
    .argument('<name>', 'of the Backup')
    .addHelpText(
      'after',
      `
It reads the bucket itself: by the credentials of the location, else by those of the environment (AWS_SHARED_CREDENTIALS_FILE and its
like), else by the Secret cloud-credentials; outside of the cluster at config.publicUrl where the location has one. "velero backup logs"
prints the first part only.

Examples:
  $ longshore backup logs nightly-20261125
  $ kubectl -n velero exec deploy/longshore-server -- longshore backup logs nightly-20261125`,
    )
    .action(async (name: string, flags: ClusterFlags) => {
      const { printLogs } = await import('./logs.ts');
      await printLogs('Backup', name, flags);
    });
}

function addExportVerb(backup: Command): void {
  withClusterOptions(backup.command('export'))
    .description('write the files of a backup to a directory, in plain text, as Velero reads them')
    .argument('<name>', 'of the Backup')
    .requiredOption('--directory <dir>', 'where the folder backups/NAME is written')
    .option(
      '--bucket <location>',
      'read this bucket without a cluster (s3://bucket/prefix or file:///path)',
    )
    .addOption(
      passwordFilesOption('with --bucket: a repository password that signed and encrypted it'),
    )
    .option(
      '--keys-file <file>',
      'with --bucket: keys that "longshore repository archive-keys" has printed',
    )
    .addHelpText(
      'after',
      `
Files of an encrypted backup are decrypted. Copy the folder into a bucket below the prefix of a location to have Velero read it. The data of
volumes are not in these files. Secrets of the cluster are: protect the directory.

Examples:
  $ longshore backup export nightly-20261125 --directory ./plain
  $ longshore backup export nightly-20261125 --directory ./plain --bucket s3://backups/prod --keys-file keys`,
    )
    .action(async (name: string, flags: ExportFlags) => {
      const { exportBackup } = await import('./export.ts');
      await exportBackup(name, flags);
    });
}
