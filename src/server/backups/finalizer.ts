import {
  BackupArchive,
  readTarball,
  type ScratchFile,
  storeTarball,
  updatedEntries,
} from '../../archive/index.ts';
import { type Clock, type Logger, rfc3339Seconds, unixSeconds } from '../../base/index.ts';
import { type About, type Backup, finalizeItems, Results } from '../../backup/index.ts';
import {
  backupOperationSchema,
  type BackupOperation,
  postOperationItems,
} from '../../item-operations/index.ts';
import {
  type DataUpload,
  type Discovery,
  type KubeClient,
  POD_VOLUME_BACKUPS,
  type PodVolumeBackup,
} from '../../kube/index.ts';
import type { ActionSession, Buckets } from './contract.ts';
import { type LateLine, subjectLog } from './run/late-log.ts';
import { updatedVolumeInfos } from './updated-volume-infos.ts';

export interface FinalizerOptions {
  readonly client: KubeClient;
  readonly discovery: Discovery;
  readonly buckets: Buckets;
  readonly logger: Logger;
  readonly directory: string;
  readonly logFormat: string;
  readonly clock: Clock;
  readonly assertLeading: () => void;
}

interface FinalizingStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
}

const SNAPSHOTS = 'volumesnapshots';
const UPLOADS = 'datauploads';
const POD_VOLUMES = 'podvolumebackups';

/**
 * Ends a backup whose operations are over: items that they changed are taken anew, and the files in the bucket say how it ended before the CR
 * does. May be repeated from any point: until its own file says `Completed`, nobody takes the backup for a whole one. Returns what the CR is to
 * say.
 */
export async function finalizeBackup(
  backup: Backup,
  session: Pick<ActionSession, 'loadActions'>,
  options: FinalizerOptions,
  signal: AbortSignal,
): Promise<Readonly<Record<string, unknown>>> {
  const { buckets, logger, clock, assertLeading } = options;
  const { name } = backup.metadata;
  await using opened = await buckets.open(backup.spec.storageLocation ?? '', signal);
  const archive = new BackupArchive(opened.bucket, { logger });
  const stored = await archive.open(name, { signal });
  const phaseStored = stored.metadata.status?.phase ?? '';
  // Killed before the CR was told.
  if (
    stored.metadata.metadata.uid === backup.metadata.uid &&
    /^(Completed|PartiallyFailed)$/.test(phaseStored)
  ) {
    const { status = {} } = stored.metadata;
    return status;
  }
  const operations = await stored.itemOperations(backupOperationSchema, { signal });
  const found: { uploads: DataUpload[] } = { uploads: [] };
  const results = new Results();
  const lines: LateLine[] = [];
  const say =
    (level: LateLine['level']) =>
    (message: string, about?: About): void => {
      lines.push({ level, message, about });
      results[level](message, about);
    };
  const log = { info: say('info'), warn: say('warn'), error: say('error') };
  const items = postOperationItems(operations).filter(
    ({ resource: plural }) => plural !== POD_VOLUMES,
  );
  let contents: ScratchFile | undefined;
  try {
    if (items.length > 0) {
      const { client, discovery } = options;
      await discovery.refresh({ signal });
      const files = await finalizeItems({
        ...{ client, discovery, backup, items, signal, log },
        actions: (await session.loadActions(signal)).actions,
        onObject: (object, { resource: plural }) => {
          if (plural === UPLOADS) found.uploads.push(object as DataUpload);
        },
      });
      if (files.size > 0) {
        const mtime = unixSeconds(clock.nowNs());
        const entries = readTarball(stored.read('contents', { signal }), 'contents');
        contents = await storeTarball(options.directory, updatedEntries(entries, files, mtime));
      }
    }
    const podVolumeBackups = await podVolumesOf(backup, options.client, signal);
    const before = await stored.volumeInfos({ signal });
    const volumeInfos = updatedVolumeInfos(before, { ...found, podVolumeBackups, operations });
    const status = (backup.status ?? {}) as FinalizingStatus;
    const errors = (status.errors ?? 0) + results.errorCount;
    const warnings = (status.warnings ?? 0) + results.warningCount;
    const isPartial = errors > 0 || status.phase === 'FinalizingPartiallyFailed';
    const csiSnapshots = operations.filter(isCompletedSnapshot).length;
    const change = {
      phase: isPartial ? 'PartiallyFailed' : 'Completed',
      completionTimestamp: rfc3339Seconds(clock.nowNs()),
      ...(errors > 0 && { errors }),
      ...(warnings > 0 && { warnings }),
      ...(csiSnapshots > 0 && { csiVolumeSnapshotsCompleted: csiSnapshots }),
    };
    const { lists } = results;
    const hasFound = results.errorCount + results.warningCount > 0;
    if (hasFound) {
      const { directory, logFormat: format } = options;
      await using text = await subjectLog(stored, { backup, lines, directory, format, signal });
      assertLeading();
      await archive.putLog(name, text, { signal });
    }
    const earlier = await stored.results({ signal });
    assertLeading();
    await archive.update(
      name,
      {
        volumeInfos,
        ...(podVolumeBackups.length > 0 && { podVolumeBackups }),
        ...(hasFound && { results: merged(earlier, lists) }),
        ...(contents && { contents }),
        metadata: { ...backup, status: { ...backup.status, ...change } },
      },
      { signal },
    );
    return change;
  } finally {
    await contents?.close();
  }
}

const isCompletedSnapshot = ({ spec, status }: BackupOperation): boolean =>
  spec.resourceIdentifier.Resource === SNAPSHOTS && status.phase === 'Completed';

type Lists = Results['lists'];

/** Results of the run, and what came after it. */
function merged(
  before: { readonly errors?: object | undefined; readonly warnings?: object | undefined },
  added: Lists,
): Lists {
  const joined = (one: Lists['errors'] = {}, other: Lists['errors']): Lists['errors'] => {
    const spaces = { ...one.namespaces };
    for (const [name, list] of Object.entries(other.namespaces ?? {})) {
      spaces[name] = [...(spaces[name] ?? []), ...list];
    }
    const velero = [...(one.velero ?? []), ...(other.velero ?? [])];
    const cluster = [...(one.cluster ?? []), ...(other.cluster ?? [])];
    return {
      ...(velero.length > 0 && { velero }),
      ...(cluster.length > 0 && { cluster }),
      ...(Object.keys(spaces).length > 0 && { namespaces: spaces }),
    };
  };
  return {
    errors: joined(before.errors, added.errors),
    warnings: joined(before.warnings, added.warnings),
  };
}

/** As they are now, with their snapshots. */
async function podVolumesOf(
  { metadata }: Backup,
  client: KubeClient,
  signal: AbortSignal,
): Promise<PodVolumeBackup[]> {
  const labelSelector = `velero.io/backup-uid=${metadata.uid}`;
  const { namespace } = metadata;
  return client.list(POD_VOLUME_BACKUPS, { namespace, labelSelector, signal });
}
