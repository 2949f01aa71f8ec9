import { type Command, Option } from 'commander';

/** Values are parsed later, because the parsers need much code that other verbs do not load. */
/** Names and defaults of Velero's flags (v1.18.3: pkg/cmd/cli/backup/create.go). */
export function addBackupSpecFlags(command: Command): void {
  addCommonFlags(command, 'backup');
  const scoped = 'not together with --include-resources and its like';
  command
    .option('--ttl <duration>', 'how long it is kept')
    .option(
      '--include-cluster-scoped-resources <list>',
      `resources without a namespace to take; ${scoped}`,
    )
    .option(
      '--exclude-cluster-scoped-resources <list>',
      'resources without a namespace to leave out',
    )
    .option(
      '--include-namespace-scoped-resources <list>',
      `resources of namespaces to take; ${scoped}`,
    )
    .option('--exclude-namespace-scoped-resources <list>', 'resources of namespaces to leave out')
    .option('--storage-location <name>', 'BackupStorageLocation that it is kept in')
    .option(
      '--volume-snapshot-locations <list>',
      'VolumeSnapshotLocations, at most one of each provider',
      given,
    )
    .option(
      '--ordered-resources <order>',
      'what is taken in this order, as "pods=ns1/a,ns1/b;persistentvolumes=c"',
    )
    .option('--csi-snapshot-timeout <duration>', 'how long a snapshot of a CSI driver may take');
  bareBoolean(command, '--snapshot-volumes', 'take snapshots of volumes; false takes none');
  bareBoolean(command, '--snapshot-move-data', 'move the data of snapshots into the location');
  command.option(
    '--backup-type <type>',
    'Full reads all data of volumes again, Incremental what changed (default: Incremental)',
  );
  command.option('--data-mover <name>', 'who moves the data (default: velero, the built-in one)');
  bareBoolean(
    command,
    '--default-volumes-to-fs-backup',
    "back up the files of pods' volumes where nothing else is said about a volume",
  );
  command
    .option('--resource-policies-configmap <name>', 'ConfigMap with resource policies')
    .option('--parallel-files-upload <n>', 'files of a volume that are uploaded at once');
}

/** Flags of Velero v1.18.3 (pkg/cmd/cli/restore/create.go), and two of 1.19 for volumes. */
export function addRestoreSpecFlags(command: Command): void {
  command
    .option('--from-backup <name>', 'Backup to restore')
    .option('--from-schedule <name>', 'Schedule whose newest backup is restored');
  bareBoolean(
    command,
    '--allow-partially-failed',
    'with --from-schedule: the newest backup may be PartiallyFailed',
  );
  addCommonFlags(command, 'restore');
  command
    .addOption(
      new Option(
        '--existing-resource-policy <policy>',
        'what becomes of objects that are there already',
      ).choices(['none', 'update']),
    )
    .addOption(
      new Option(
        '--existing-volume-data-policy <policy>',
        'what becomes of the data of volumes that are there already; full and incremental bring them back in place',
      ).choices(['none', 'full', 'incremental']),
    )
    .option(
      '--namespace-mappings <pairs>',
      'namespaces to restore into others, as from1:to1,from2:to2',
      given,
    )
    .option('--status-include-resources <list>', 'resources whose status is restored as well')
    .option('--status-exclude-resources <list>', 'of these, those whose status is not');
  bareBoolean(command, '--restore-volumes', 'restore volumes; false restores none');
  bareBoolean(command, '--preserve-nodeports', 'keep the node ports of Services');
  bareBoolean(
    command,
    '--skip-default-resource-modifier',
    'do not use the modifiers that the server has for all restores',
  );
  command
    .option('--resource-modifier-configmap <name>', 'ConfigMap with resource modifiers')
    .option(
      '--resource-policies-configmap <name>',
      'ConfigMap with filters by namespace and kind of what is restored',
    );
  bareBoolean(command, '--write-sparse-files', 'write holes in files of volumes');
  command.option(
    '--parallel-files-download <n>',
    'files of a volume that are restored at once; 0 is one for each CPU of the node',
  );
  bareBoolean(
    command,
    '--delete-extra-files',
    'in volumes that are brought back in place, remove files that the backup does not have',
  );
}

function addCommonFlags(command: Command, what: 'backup' | 'restore'): void {
  const took = what === 'backup' ? 'taken' : 'restored';
  command
    .option(
      '--include-namespaces <list>',
      `namespaces that are ${took}, comma-separated; * is all`,
      '*',
    )
    .option('--exclude-namespaces <list>', 'namespaces that are left out')
    .option(
      '--include-resources <list>',
      `resources that are ${took}, as deployments.apps; * is all`,
    )
    .option('--exclude-resources <list>', 'resources that are left out');
  bareBoolean(
    command,
    '--include-cluster-resources',
    'with objects without a namespace; false without them',
  );
  command
    .option('--labels <pairs>', 'labels of the object, as a=b,c=d', given)
    .option('--annotations <pairs>', 'annotations of the object', given)
    .option(
      '-l, --selector <selector>',
      `only objects with these labels, as "app=web,tier in (a,b)"`,
    )
    .option(
      '--or-selector <selectors>',
      'objects with the labels of one of these, as "app=web or app=db"',
    )
    .option(
      '--item-operation-timeout <duration>',
      'how long an operation of an item may take, as the move of a volume',
    )
    .addOption(
      new Option('-o, --output <form>', 'print the object and create nothing').choices([
        'json',
        'yaml',
      ]),
    );
}

/** Collects all values of a repeated flag. */
const given = (text: string, before: readonly string[] = []): string[] => [...before, text];

/**
 * Boolean flags of a command. They never take the next word as a value, because it may be a name.
 */
const bare = new WeakMap<Command, Set<string>>();

/** `--flag` or `--flag=false`. Without the flag the field is not set. */
export function bareBoolean(command: Command, flag: string, text: string): void {
  command.option(`${flag} [boolean]`, text);
  const flags = bare.get(command);
  if (flags) {
    flags.add(flag);
    return;
  }
  const own = new Set([flag]);
  bare.set(command, own);
  const parse = command.parseOptions.bind(command);
  command.parseOptions = (words) => {
    const end = words.indexOf('--');
    const isFlag = (at: number): boolean => end === -1 || at < end;
    return parse(words.map((word, at) => (own.has(word) && isFlag(at) ? `${word}=true` : word)));
  };
}
