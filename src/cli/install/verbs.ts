import { type Command, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { InstallCommandFlags } from './install.ts';
import type { UninstallFlags } from './uninstall.ts';

export function addInstallVerbs(program: Command): void {
  withClusterOptions(program.command('install'))
    .description(
      'install everything into a cluster where no Velero server runs: definitions, rights, the server that makes backups, the node-agents, a location',
    )
    .option('--image <image>', 'the image that was built from the Dockerfile, as the nodes pull it')
    .option('--provider <name>', 'of the storage: aws, azure, gcp, fs, or the name of a plugin')
    .option('--bucket <name>', 'in which backups are kept')
    .option('--prefix <path>', 'below which they are kept in the bucket')
    .option('--backup-location-config <pairs>', 'as region=minio,s3Url=http://minio:9000')
    .option('--cacert <file>', 'certificates that the storage is trusted by')
    .option('--secret-file <file>', 'with the credentials of the storage')
    .option(
      '--location-secrets <names>',
      'more Secrets of storage locations, separated by commas; server, data movers and maintenance may read them',
    )
    .option('--no-secret', 'without credentials: pods have an identity of their own')
    .option('--no-default-backup-location', 'without a location')
    .option('--features <names>', "of Velero's server; EnableCSI where nothing is said")
    .option(
      '--wait',
      'return when a server is ready and has looked at the location, and say what it found',
    )
    .option('--dry-run', 'print what would be applied, and ask no cluster')
    .addOption(new Option('-o, --output <form>', 'print what is applied').choices(['yaml', 'json']))
    .addHelpText(
      'after',
      `
It may be run again, with other flags too. The Secret velero-repo-credentials gets a random password for all repositories, unless it is there already:
keep a copy of it outside of the cluster. Where Velero's server runs, docs/with-velero.md says how the two go together.

Examples:
  $ longshore install --image registry.example.com/longshore:1 --provider aws --bucket velero \\
      --backup-location-config region=eu-central-1 --secret-file ./credentials --wait
  $ longshore install --image longshore --no-default-backup-location --no-secret --dry-run | kubectl diff -f -`,
    )
    .action(async ({ cacert, ...flags }: InstallCommandFlags & { cacert?: string }) => {
      const { install } = await import('./install.ts');
      await install({ ...flags, ...(cacert !== undefined && { caCert: cacert }) });
    });
  withClusterOptions(program.command('uninstall'))
    .description(
      'remove what "longshore install" has made; backups in the bucket and snapshots that are kept stay',
    )
    .option('--force', 'do not ask')
    .option(
      '--keep-crds',
      "leave the definitions, as for Velero's server, with all objects of other namespaces",
    )
    .option('--cancel-timeout <duration>', 'how long work that is under way may take to end', '60s')
    .addHelpText(
      'after',
      `
Running operations are canceled first, so that nothing of them stays in the storage. Then servers and agents are deleted, and then the
finalizers of the remaining objects. So no object and no namespace stays in Terminating.

A namespace stays if its Secret velero-repo-credentials has a random password, or if it has the Secret longshore-archive-keys. The
backups in the bucket need both.

Example:
  $ longshore uninstall --force`,
    )
    .action(async (flags: UninstallFlags) => {
      const { uninstall } = await import('./uninstall.ts');
      await uninstall(flags);
    });
}
