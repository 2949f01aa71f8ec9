import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { withOutputForm } from '../output/format-options.ts';
import { JSON_OPTION } from '../program.ts';
import type { BrowseFlags } from './browse.ts';

export function addBrowseVerb(program: Command): void {
  const command = withClusterOptions(program.command('browse'))
    .description(
      'look into the volumes of a backup, and fetch single files of them, without restoring anything: no pod, no mount, no privilege',
    )
    .argument('<backup>', 'its name')
    .argument('[volume]', 'as NAMESPACE/PVC, or the PVC alone where no other namespace has one')
    .argument('[path]', 'of a directory or file in the volume', '/')
    .option('-r, --recursive', 'list everything below, too')
    .option('--cat', 'write the file at the path to stdout')
    .option('--tar', 'write the directory or file at the path to stdout as a tar archive')
    .option('--utc', 'print times in UTC')
    .option('--memory-limit <size>', 'memory that the repository may take, such as 256MiB')
    .option(...JSON_OPTION);
  withOutputForm(command, { isTable: true })
    .addHelpText(
      'after',
      `
It reads the bucket and the repository itself: by the credentials of the location, else by those of the environment, else by the Secret
cloud-credentials. Snapshots that stay in the storage have no files that could be listed. Of a raw volume the files of
an ext2, ext3 or ext4 file system on it are shown, also in partitions (/p1); without a path, --cat writes the device.

Examples:
  $ longshore browse nightly-20261126
  $ longshore browse nightly-20261126 shop/data /etc
  $ longshore browse nightly-20261126 shop/data /etc/hosts --cat > hosts
  $ longshore browse nightly-20261126 shop/data /var/lib --tar | tar -x -C /tmp/restored
  $ longshore browse nightly-20261126 shop/disk --cat > disk.img`,
    )
    .action(
      async (backup: string, volume: string | undefined, path: string, flags: BrowseFlags) => {
        const { browse } = await import('./browse.ts');
        await browse(backup, volume, path, flags);
      },
    );
}
