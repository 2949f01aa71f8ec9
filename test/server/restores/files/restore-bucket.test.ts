import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import {
  bucketOf,
  RestoreArchive,
  restoreJournalFolder,
  sealsFolder,
} from '../../../../src/archive/index.ts';
import { CodedError } from '../../../../src/base/index.ts';
import type { Bucket } from '../../../../src/blob/index.ts';
import {
  CONFIG_MAPS,
  type ConfigMap,
  type KubeClient,
  type KubeObject,
  type Resource,
} from '../../../../src/kube/index.ts';
import { RESTORE_FILES_LABEL } from '../../../../src/server/restores/files/cluster-files.ts';
import { RestoreBucket } from '../../../../src/server/restores/files/restore-bucket.ts';
import { removeJournals } from '../../../../src/server/runs/journal.ts';
import { RestoreCluster } from '../../../restore/support/cluster.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';

const RESULTS = 'restores/r1/restore-r1-results.gz';
const LOG = 'restores/r1/restore-r1-logs.gz';
const JOURNAL = (uid: string, at: number): string =>
  `restores/r1/longshore-journal/${uid}/00000001-abcdef01-${String(at).padStart(8, '0')}`;
const MIB = 1 << 20;
const { signal } = new AbortController();
const assertAllowed = (): void => undefined;

const bytesOf = async (bucket: Bucket, key: string): Promise<string> =>
  Buffer.concat(await Array.fromAsync(bucket.get(key))).toString();
const codeOf = (task: Promise<unknown>): Promise<unknown> =>
  task.then(
    () => undefined,
    (error: unknown) => (error as CodedError).code,
  );

/** A cluster with a Restore r1, and a bucket with configurable refusals. */
class Place {
  readonly cluster = new RestoreCluster().namespaces('velero');
  readonly uid: string;
  readonly bucket: MemoryBucket;
  refuses: (call: string, key: string) => boolean = () => false;
  /** Called before an object is created or patched. */
  beforeWrite: (sent: object) => Promise<void> = () => Promise.resolve();
  /** Called when an object is patched, before the answer. */
  beforeAnswer: () => Promise<void> = () => Promise.resolve();
  beforeDelete: () => Promise<void> = () => Promise.resolve();

  constructor(uid: string, bucket = new MemoryBucket()) {
    this.uid = uid;
    this.bucket = bucket;
  }

  /** Opens it like another process. */
  open(): RestoreBucket {
    const { cluster, uid } = this;
    const client = {
      find: (...asked: Parameters<typeof cluster.find>) => cluster.find(...asked),
      create: async (...asked: Parameters<typeof cluster.create>) => {
        await this.beforeWrite(asked[1]);
        return cluster.create(...asked);
      },
      patch: async (...[resource, ref, change]: Parameters<typeof cluster.patch>) => {
        await this.beforeWrite(change);
        const now = this.maps.find(({ metadata }) => metadata.name === ref.name)?.metadata;
        const { resourceVersion } = (change as Partial<KubeObject>).metadata ?? {};
        if (now && resourceVersion !== undefined && resourceVersion !== now.resourceVersion) {
          throw new CodedError('KUBE_CONFLICT', 'the object has been modified');
        }
        const metadata = { resourceVersion: String(Number(now?.resourceVersion) + 1) };
        const answer: object = await cluster.patch(resource, ref, { ...change, metadata });
        await this.beforeAnswer();
        return answer;
      },
      list: (_: Resource<KubeObject>, { labelSelector = '' }: { labelSelector?: string }) =>
        Promise.resolve(this.maps.filter(({ metadata }) => hasLabel(metadata, labelSelector))),
      delete: async (_: Resource<KubeObject>, { namespace, name }: KubeObject['metadata']) => {
        await this.beforeDelete();
        cluster.remove('configmaps', `${namespace ?? ''}/${name}`);
        return true;
      },
    } as unknown as KubeClient;
    const refusing = bucketThrough(this.bucket, async (call, key, task) => {
      await Promise.resolve();
      if (this.refuses(call, key)) throw new CodedError('STORAGE_FULL', 'the bucket is full');
      return task();
    });
    const restore = { name: 'r1', uid };
    return new RestoreBucket(refusing, {
      client,
      namespace: 'velero',
      location: 'default',
      restore,
    });
  }

  get maps(): ConfigMap[] {
    return this.cluster.objects.get('configmaps') ?? [];
  }
}

const hasLabel = ({ labels = {} }: KubeObject['metadata'], selector: string): boolean => {
  const [label = '', value] = selector.split('=');
  return labels[label] === value;
};

describe('the bucket of a restore', () => {
  it('keeps files that the bucket refuses in ConfigMaps that belong to the Restore, and no backup takes', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    await place.open().claim({ signal, assertAllowed });
    await place.open().put(RESULTS, [Buffer.from('a'), Buffer.from('b')]);
    expect(await bytesOf(place.open(), RESULTS)).toBe('ab');
    expect(place.bucket.objects.size).toBe(0);
    expect(place.maps).toHaveLength(2);
    for (const { metadata } of place.maps) {
      expect(metadata).toMatchObject({
        namespace: 'velero',
        labels: { 'velero.io/exclude-from-backup': 'true', [RESTORE_FILES_LABEL]: 'u1' },
        ownerReferences: [{ apiVersion: 'velero.io/v1', kind: 'Restore', name: 'r1', uid: 'u1' }],
      });
    }
    await place.open().deleteKept(signal);
    expect(place.maps).toEqual([]);
  });

  it('loses no file to another server that replaces another file at the same moment', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    const slow = place.open();
    await slow.put(RESULTS, [Buffer.from('old')]);
    let others = 0;
    place.beforeWrite = async (change) => {
      // The bytes are in a page, and the index does not have them yet.
      if (!('data' in change) || others++ > 0) return;
      await place.open().put(RESULTS, [Buffer.from('new')]);
    };
    await slow.put(LOG, [Buffer.from('lines')]);
    expect(others).toBeGreaterThan(0);
    expect(await bytesOf(place.open(), LOG)).toBe('lines');
    expect(await bytesOf(place.open(), RESULTS)).toBe('new');
  });

  const SEAL = `${sealsFolder('restores/r1/')}u1`;
  it.each([
    ['the first file', []],
    ['a further file', [LOG]],
  ])('lets one of two servers add %s', async (_, before) => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    for (const key of before) await place.open().put(key, [Buffer.from('old')]);
    const ifAbsent = { ifAbsent: true };
    let others = 0;
    place.beforeWrite = async (sent) => {
      if (!('data' in sent) || others++ > 0) return;
      await place.open().put(SEAL, [Buffer.from('theirs')], ifAbsent);
    };
    const slow = place.open().put(SEAL, [Buffer.from('ours')], ifAbsent);
    expect(await codeOf(slow)).toBe('BLOB_EXISTS');
    expect(await bytesOf(place.open(), SEAL)).toBe('theirs');
    // The index, and a page for each file.
    expect(place.maps).toHaveLength(2 + before.length);
  });

  it('adds a file while another server adds another one, and where an answer is lost', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    const ifAbsent = { ifAbsent: true };
    let others = 0;
    place.beforeWrite = async (sent) => {
      if (!('data' in sent) || others++ > 0) return;
      await place.open().put(LOG, [Buffer.from('lines')]);
    };
    await place.open().put(SEAL, [Buffer.from('ours')], ifAbsent);
    expect(others).toBeGreaterThan(1);
    expect(await bytesOf(place.open(), SEAL)).toBe('ours');
    expect(await bytesOf(place.open(), LOG)).toBe('lines');
    let sends = 0;
    const key = `${SEAL}2`;
    place.beforeWrite = async (sent) => {
      if (!('data' in sent) || sends++ > 0) return;
      // The client retries, because the answer was lost.
      const [index] = place.maps.filter(({ data }) => data !== undefined);
      await place.cluster.patch(CONFIG_MAPS, index?.metadata as KubeObject['metadata'], {
        metadata: { resourceVersion: 'later' },
        data: sent.data,
      });
    };
    await place.open().put(key, [Buffer.from('more')], ifAbsent);
    expect(await bytesOf(place.open(), key)).toBe('more');
  });

  it('replaces a file that is kept, and lists it once', async () => {
    const place = new Place('u1');
    await place.open().put(RESULTS, [Buffer.from('in the bucket')]);
    place.refuses = (call) => call === 'put';
    for (let times = 0; times < 5; times++) {
      await place.open().put(RESULTS, [Buffer.from(`kept ${times}`)]);
    }
    // Once a file is kept in the cluster, an older file never hides a newer one.
    place.refuses = () => false;
    await place.open().put(RESULTS, [Buffer.from('newest')]);
    expect(await bytesOf(place.open(), RESULTS)).toBe('newest');
    expect(await Array.fromAsync(place.open().list('restores/r1/'))).toEqual([RESULTS]);
    expect(place.maps).toHaveLength(2);
    await place.open().delete(RESULTS);
    expect(await place.open().has(RESULTS)).toBe(false);
    expect([place.maps, [...place.bucket.objects.keys()]]).toEqual([[], []]);
  });

  it('stores what can be stored when the bucket works again, and says nothing then', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    const body = async function* () {
      await Promise.resolve();
      yield Buffer.alloc(MIB, 'l');
      yield Buffer.from('end');
    };
    await place.open().put(LOG, body());
    await place.open().put(RESULTS, [Buffer.from('r')]);
    expect(await place.open().upload({ signal, assertAllowed })).toContain('the bucket is full');
    place.refuses = (call, key) => call === 'put' && key === RESULTS;
    expect(await place.open().upload({ signal, assertAllowed })).toContain('ConfigMaps');
    expect(place.bucket.objects.get(LOG)?.length).toBe(MIB + 3);
    place.refuses = () => false;
    expect(await place.open().upload({ signal, assertAllowed })).toBeUndefined();
    expect([...place.bucket.objects.keys()].sort()).toEqual([LOG, RESULTS]);
    expect(place.maps).toEqual([]);
  });

  it('throws what a bucket throws that is away for a while, and keeps nothing', async () => {
    const place = new Place('u1');
    const away = new CodedError('STORAGE_UNREACHABLE', 'away', { retry: 'backoff' });
    place.bucket.put = () => Promise.reject(away);
    expect(await codeOf(place.open().put(RESULTS, [Buffer.from('r')]))).toBe('STORAGE_UNREACHABLE');
    expect(place.maps).toEqual([]);
  });

  it('names a file that is too long for the cluster, and goes on without it', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    await place.open().put(LOG, [Buffer.alloc(6 * MIB)]);
    await place.open().put(RESULTS, [Buffer.from('r')]);
    const said = await place.open().upload({ signal, assertAllowed });
    expect(said).toContain('Too long for a ConfigMap, and lost: restore-r1-logs.gz');
    expect(await codeOf(bytesOf(place.open(), LOG))).toBe('BLOB_NOT_FOUND');
    expect(await bytesOf(place.open(), RESULTS)).toBe('r');
  });

  it('keeps few versions of a file, although the bucket keeps the oldest ones for ever', async () => {
    const place = new Place('u1');
    const store = async (text: string): Promise<void> => {
      const bucket = bucketOf(place.open(), { isWriteOnce: true });
      await bucket.put(RESULTS, [Buffer.from(text)]);
    };
    for (let times = 0; times < 4; times++) await store(`in the bucket ${times}`);
    place.refuses = (call) => call === 'put' || call === 'delete';
    for (let times = 0; times < 20; times++) await store(`kept ${times}`);
    expect(place.maps.length).toBeLessThan(7);
    const bucket = bucketOf(place.open(), { isWriteOnce: true });
    expect(await bytesOf(bucket, RESULTS)).toBe('kept 19');
  });

  it('keeps thousands of journal segments in few ConfigMaps, each below 1 MiB', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    const bucket = place.open();
    for (let at = 0; at < 400; at++) await bucket.put(JOURNAL('u1', at), [Buffer.alloc(4000, at)]);
    expect(place.maps.length).toBeLessThan(6);
    for (const map of place.maps) expect(JSON.stringify(map).length).toBeLessThan(MIB * 1.1);
    const keys = await Array.fromAsync(place.open().list('restores/r1/longshore-journal/'));
    expect(keys).toHaveLength(400);
    expect((await bytesOf(place.open(), JOURNAL('u1', 399))).length).toBeGreaterThan(0);
  });

  it('keeps no ConfigMap of a removed journal when a newer answer overtakes an older one', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    const bucket = place.open();
    for (let at = 0; at < 2; at++) await bucket.put(JOURNAL('u1', at), [Buffer.from('segment')]);
    const older = Promise.withResolvers<undefined>();
    let answers = 0;
    place.beforeAnswer = async () => {
      if (answers++ === 0) await older.promise;
    };
    place.beforeDelete = async () => {
      older.resolve(undefined);
      await nextTurn();
    };
    await removeJournals(bucket, restoreJournalFolder('r1', 'u1'), signal);
    expect(place.maps).toEqual([]);
  });

  it('lets nobody go on from a journal that did not fit', async () => {
    const place = new Place('u1');
    place.refuses = (call) => call === 'put';
    const bucket = place.open();
    for (let at = 0; at < 4; at++) await bucket.put(JOURNAL('u1', at), [Buffer.alloc(3 * MIB)]);
    const keys = await Array.fromAsync(place.open().list('restores/r1/longshore-journal/'));
    expect(keys).toEqual([0, 1, 2].map((at) => JOURNAL('u1', at)));
    expect(await codeOf(bytesOf(place.open(), keys.at(-1) ?? ''))).toBe('JOURNAL_NOT_KEPT');
  });
});

describe('two clusters with a Restore of one name, and one bucket', () => {
  it('each has its own files, and deletes no file of the other', async () => {
    const a = new Place('ua');
    const b = new Place('ub', a.bucket);
    for (const { open } of [a, b].map((place) => ({ open: place.open() }))) {
      await open.claim({ signal, assertAllowed });
      await open.put(RESULTS, [Buffer.from('x')]);
    }
    await a.open().put(RESULTS, [Buffer.from('of a')]);
    await b.open().put(RESULTS, [Buffer.from('of b')]);
    expect(await bytesOf(a.open(), RESULTS)).toBe('of a');
    expect(await bytesOf(b.open(), RESULTS)).toBe('of b');
    expect(await codeOf(bytesOf(b.open(), LOG))).toBe('BLOB_NOT_FOUND');
    expect(await codeOf(b.open().assertInBucket(RESULTS))).toBe('UNSUPPORTED_URL');
    const said = await b.open().upload({ signal, assertAllowed });
    expect(said).toContain('restores/r1/ there has the files of another Restore with the UID ua');
    for (let times = 0; times < 2; times++) {
      await new RestoreArchive(b.open()).delete('r1');
      await b.open().deleteKept(signal);
      expect(await bytesOf(a.open(), RESULTS)).toBe('of a');
    }
    await new RestoreArchive(a.open()).delete('r1');
    expect([...a.bucket.objects.keys()]).toEqual([]);
  });

  it('leaves files alone that do not tell whose they are, as those of a real Velero', async () => {
    const place = new Place('u1');
    place.bucket.objects.set(RESULTS, Buffer.from('of Velero'));
    await place.open().claim({ signal, assertAllowed });
    await place.open().put(RESULTS, [Buffer.from('ours')]);
    expect(await bytesOf(place.open(), RESULTS)).toBe('ours');
    expect(await place.open().upload({ signal, assertAllowed })).toContain('that nobody knows');
    // Killed between its steps, and repeated.
    for (let times = 0; times < 3; times++) {
      await new RestoreArchive(place.open()).delete('r1');
      await place.open().deleteKept(signal);
    }
    expect(place.bucket.objects.get(RESULTS)?.toString()).toBe('of Velero');
  });

  it('takes files for its own that only its own run can have stored', async () => {
    const place = new Place('u1');
    // A run before folders had owners, whose server was killed.
    place.bucket.objects.set(JOURNAL('u1', 0), Buffer.from('j'));
    place.bucket.objects.set(RESULTS, Buffer.from('r'));
    await place.open().claim({ signal, assertAllowed });
    await place.open().put(RESULTS, [Buffer.from('newer')]);
    expect(place.bucket.objects.get(RESULTS)?.toString()).toBe('newer');
    await new RestoreArchive(place.open()).delete('r1');
    expect([...place.bucket.objects.keys()]).toEqual([]);
  });
});
