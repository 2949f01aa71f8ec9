import type { Command } from 'commander';

/** Flags about backups, with Velero's defaults (v1.18.3: pkg/cmd/server/config/config.go). */
export function addBackupFlags(command: Command): void {
  command
    .option('--concurrent-backups <n>', 'backups that run at once, of different namespaces', '1')
    .option(
      '--item-block-worker-count <n>',
      'blocks of items that are backed up at once, in each backup',
      '1',
    )
    .option(
      '--item-operation-sync-frequency <duration>',
      'how often operations of backups are asked about',
      '10s',
    )
    .option(
      '--default-backup-ttl <duration>',
      'how long backups are kept that do not say it themselves',
      '720h0m0s',
    )
    .option(
      '--default-item-operation-timeout <duration>',
      'how long an operation may take where the backup does not say it',
      '4h0m0s',
    )
    .option(
      '--plugin-item-operation-timeout <action=duration>',
      'how long an operation of this action may take, whatever the backup says; may be repeated',
      (value: string, before: readonly string[] | undefined) => [...(before ?? []), value],
    )
    .option(
      '--fs-backup-timeout <duration>',
      "how long the hooks of a pod wait until its volumes' files are read, and how long that may take",
      '4h0m0s',
    )
    .option(
      '--schedule-skip-immediately [boolean]',
      'skip the first backup of schedules that do not say it themselves',
    )
    .option(
      '--trust-must-include-annotations',
      'let users bring additional items past the filters of backups and restores, by annotations of their objects',
    )
    .option('--resource-timeout <duration>', 'how long a repository may take to be ready', '10m0s')
    .option(
      '--default-volumes-to-fs-backup [boolean]',
      "back up the files of pods' volumes where the backup does not say it",
    )
    .option(
      '--default-snapshot-move-data [boolean]',
      'move the data of snapshots where the backup does not say it',
    )
    .option('--default-volume-snapshot-locations <list>', 'as provider:location, comma-separated')
    .option(
      '--volume-group-snapshot-label-key <key>',
      'label of PVCs whose snapshots are taken at one moment',
      'velero.io/volume-group',
    )
    .option(
      '--global-backup-volume-policies-configmap <name>',
      "ConfigMap of volume policies for all backups, which count after a backup's own",
    );
}

/** Flags of `velero server` about restores, same source. */
export function addRestoreFlags(command: Command): void {
  command
    .option(
      '--restore-resource-priorities <list>',
      'types in the order in which they are restored, comma-separated; those behind a - come last',
    )
    .option(
      '--terminating-resource-timeout <duration>',
      'how long a restore waits for a namespace or volume of the same name to be gone',
      '10m0s',
    )
    .option(
      '--default-resource-modifier-configmap <name>',
      'ConfigMap with modifiers for restores that name none',
    )
    .option(
      '--max-backup-extraction-size <megabytes>',
      'limit for the unpacked objects of a backup (default: 65536)',
    );
}
