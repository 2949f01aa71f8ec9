/**
 * `node --expose-gc bench/backup-sync.ts [--backups N]`: cost of the sync of a location with N
 * backups (10,000 by default), each with two pod volume backups.
 *
 * Measures the first sync of a new cluster, a sync without changes, and two syncs that each find
 * half of the backups deleted. Prints seconds, the growth of the heap, and requests to bucket and
 * API server. Both are in memory and answer at once, so that only the controller's own work is
 * measured.
 */
import { gzipSync } from 'node:zlib';
import { parseArgs } from 'node:util';
import { BackupArchive } from '../src/archive/index.ts';
import { CodedError, ManualClock, parseGoTime, silentLogger } from '../src/base/index.ts';
import { BlobNotFoundError, type Bucket } from '../src/blob/index.ts';
import type { Backup } from '../src/kube/index.ts';
import { syncLocation } from '../src/server/sync/sync-location.ts';
import { SyncMemory } from '../src/server/sync/sync-memory.ts';

const { values } = parseArgs({ options: { backups: { type: 'string', default: '10000' } } });
const count = Number(values.backups);
const clock = new ManualClock(parseGoTime('2026-11-21T02:00:00Z'));
const volumes = gzipSync(JSON.stringify(['a', 'b'].map(volumeOf)));
const known = new Map<string, Backup>();
const requests: Record<string, number> = {};
let present = count;

function volumeOf(name: string): object {
  return { metadata: { name, labels: {} }, spec: { volume: name }, status: { phase: 'Completed' } };
}

const note = (what: string): void => {
  requests[what] = (requests[what] ?? 0) + 1;
};

/** As long as a Backup of Velero is. */
function metadataOf(name: string): Buffer {
  const labels = Object.fromEntries(Array.from({ length: 10 }, (_, at) => [`label-${at}`, 'x']));
  return Buffer.from(
    JSON.stringify({
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name, labels },
      spec: { includedNamespaces: Array.from({ length: 40 }, (_, at) => `namespace-${at}`) },
      status: { phase: 'Completed' },
    }),
  );
}

const bucket = {
  displayName: 'memory',
  async *get(key: string) {
    note('bucket get');
    await Promise.resolve();
    const [, name = '', file = ''] = key.split('/');
    if (file === 'velero-backup.json') yield metadataOf(name);
    else if (file.endsWith('-podvolumebackups.json.gz')) yield volumes;
    else throw new BlobNotFoundError(key as never);
  },
  has(key: string) {
    note('bucket has');
    return Promise.resolve(Number(key.split('/')[1]?.slice(1)) < present);
  },
  async *listFolders() {
    note('bucket list');
    await Promise.resolve();
    for (let at = 0; at < present; at++) yield `b${at}`;
  },
} as unknown as Bucket;

const location = {
  metadata: { name: 'default', namespace: 'velero', uid: 'l', annotations: {} as object },
  spec: { provider: 'aws', objectStorage: { bucket: 'b' } },
  status: { phase: 'Available' },
};
const client = {
  clock,
  create: ({ plural }: { plural: string }, object: Backup) => {
    note(`create ${plural}`);
    const metadata = { ...object.metadata, uid: object.metadata.name, resourceVersion: '1' };
    if (plural === 'backups') {
      // As the cache of the server keeps them.
      const { phase } = object.status as { phase: string };
      const kept = { metadata, spec: { storageLocation: 'default' }, status: { phase } };
      known.set(metadata.name, kept);
    }
    return Promise.resolve({ ...object, metadata });
  },
  patch: ({ plural }: { plural: string }, { name }: { name: string }, body: typeof location) => {
    note(`patch ${plural}`);
    const backup = known.get(name);
    if (plural === 'backups' && backup) {
      const metadata = { ...backup.metadata, annotations: {} };
      known.set(name, { ...backup, metadata });
    }
    if (plural !== 'backups') Object.assign(location.metadata, body.metadata, { uid: 'l' });
    return Promise.resolve({});
  },
  find: ({ plural }: { plural: string }) => {
    note(`get ${plural}`);
    return Promise.resolve(location);
  },
  delete: ({ plural }: { plural: string }, { name }: { name: string }) => {
    note(`delete ${plural}`);
    return Promise.resolve(known.delete(name));
  },
};

const memory = new SyncMemory();
async function sync(what: string): Promise<void> {
  for (const key of Object.keys(requests)) Reflect.deleteProperty(requests, key);
  globalThis.gc?.();
  const before = process.memoryUsage().heapUsed;
  const keptBefore = known.size;
  let most = before;
  const timer = setInterval(() => {
    most = Math.max(most, process.memoryUsage().heapUsed);
  }, 20);
  const startMs = performance.now();
  const report = await syncLocation({
    client: client as never,
    logger: silentLogger,
    namespace: 'velero',
    memory,
    backups: { get: ({ name }) => known.get(name), list: () => [...known.values()] },
    archive: new BackupArchive(bucket),
    location: location as never,
    locationNow: () => location as never,
    onExpired: () => undefined,
    assertLeading: () => undefined,
    signal: new AbortController().signal,
  });
  const seconds = ((performance.now() - startMs) / 1000).toFixed(1);
  clearInterval(timer);
  globalThis.gc?.();
  const mib = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(0)} MiB`;
  const kept = process.memoryUsage().heapUsed - before;
  console.log(`${what}: ${seconds} s, at most ${mib(most - before)} more, ${mib(kept)} kept`);
  console.log(`  ${JSON.stringify(report)}, ${keptBefore} known before`);
  console.log(`  ${JSON.stringify(requests)}`);
}

if (!Number.isSafeInteger(count) || count < 1) {
  throw new CodedError('USAGE', '--backups is a whole number from 1');
}
await sync('first sync');
await sync('nothing new');
present = Math.floor(count / 2);
await sync('half gone, first look');
await sync('half gone, second look');
