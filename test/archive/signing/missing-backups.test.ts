import { afterEach, describe, expect, it } from 'vitest';
import {
  BackupArchive,
  foreignFolders,
  type KnownObjects,
  type LocationFinding,
  ScratchFile,
  signingBy,
  signingKey,
  signWith,
  surveyLocation,
  TarballWriter,
  WriteOnceBucket,
} from '../../../src/archive/index.ts';
import { CodedError, ManualClock, type Nanoseconds, parseGoTime } from '../../../src/base/index.ts';
import type { Bucket } from '../../../src/blob/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const scratch = tempDirectory('chain');
const NOW = parseGoTime('2026-11-29T12:00:00Z');
const DAY = 86_400_000_000_000n;
const files: ScratchFile[] = [];
afterEach(async () => {
  await Promise.all(files.splice(0).map((file) => file.close()));
});

interface Made {
  readonly name: string;
  readonly uid?: string;
  readonly completed: string;
  readonly expiration?: string;
}
const backupOf = ({
  name,
  uid = `uid-${name}`,
  completed,
  expiration = '2026-12-29T00:00:00Z',
}: Made) => ({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name, namespace: 'velero', uid },
  spec: {},
  status: {
    phase: 'Completed',
    startTimestamp: completed,
    completionTimestamp: completed,
    expiration,
  },
});

/** A cluster with a password, and the location as its server reaches it. */
class Cluster {
  readonly bucket: Bucket;
  readonly archive: BackupArchive;
  readonly known = new Map<string, ReturnType<typeof backupOf>>();

  private constructor(bucket: Bucket) {
    this.bucket = bucket;
    this.archive = new BackupArchive(bucket);
  }

  static async of(objects: Bucket, password = 'secret', isRequired = false): Promise<Cluster> {
    // Each cluster has a bucket object of its own, which knows the cluster's key.
    const bucket = new Proxy(objects, {
      get: (target, key) => {
        const value: unknown = Reflect.get(target, key, target);
        return typeof value === 'function' ? (value.bind(target) as unknown) : value;
      },
    });
    const signing = await signingBy({ current: password, others: [], earlierKeys: [] });
    signWith(bucket, { signing, isRequired });
    return new Cluster(bucket);
  }

  /** As the server does at the end of a backup. */
  async store(made: Made): Promise<void> {
    const newestFirst = [...this.known.values()].sort((a, b) =>
      a.status.completionTimestamp < b.status.completionTimestamp ? 1 : -1,
    );
    const previous = await this.archive.previousOf(newestFirst, {});
    await using tarball = await TarballWriter.create(scratch, new ManualClock(NOW));
    const contents = await tarball.finish();
    files.push(contents);
    const none = { itemOperations: [], volumeInfos: [], podVolumeBackups: [], volumeSnapshots: [] };
    const backup = { ...none, results: {}, resourceList: {}, contents, metadata: backupOf(made) };
    await this.archive.put(made.name, backup, { previous });
    this.known.set(made.name, backupOf(made));
  }

  async delete(name: string, nowNs: Nanoseconds = NOW): Promise<void> {
    const uid = this.known.get(name)?.metadata.uid ?? '';
    this.known.delete(name);
    await this.archive.deleteOf(name, uid, { nowNs });
  }

  async missing(
    nowNs: Nanoseconds = NOW,
    more: Partial<KnownObjects> = {},
  ): Promise<LocationFinding[]> {
    const backups = new Map([...this.known.keys()].map((name) => [name, 'Completed'] as const));
    const known = { backups, restores: new Set<string>(), ...more };
    const { findings } = await surveyLocation(this.bucket, () => Promise.resolve(known), { nowNs });
    return findings.filter(({ kind }) => kind === 'MissingBackup');
  }
}

const night = (day: number): Made => ({
  name: `nightly-2026112${day}`,
  completed: `2026-11-2${day}T01:00:00Z`,
});
const nights = [night(6), night(7), night(8), night(9)];
const FIRST = night(6);
const SECOND = night(7);
const THIRD = night(8);
const LAST = night(9);

/** Removes all files of a backup, as somebody with the credentials of the bucket. */
function remove(bucket: MemoryBucket, name: string): void {
  for (const key of bucket.objects.keys()) {
    if (key.startsWith(`backups/${name}/`)) bucket.objects.delete(key);
  }
}

async function stored(
  objects: MemoryBucket = new MemoryBucket(),
  isRequired = false,
): Promise<Cluster> {
  const cluster = await Cluster.of(objects, 'secret', isRequired);
  for (const night of nights) await cluster.store(night);
  return cluster;
}

describe('a backup that is missing', () => {
  it('is named by the backup after it', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    expect(await cluster.missing()).toEqual([]);
    remove(objects, SECOND.name);
    cluster.known.delete(SECOND.name);
    expect(await cluster.missing()).toEqual([
      {
        kind: 'MissingBackup',
        name: SECOND.name,
        harm: true,
        text: `it is missing: backup ${THIRD.name} names it as the one before it, and Longshore did not delete it. If you know why, annotate Backup ${THIRD.name} with longshore.io/ignore-missing=true`,
      },
    ]);
    expect(await cluster.missing(NOW, { withoutPrevious: new Set([THIRD.name]) })).toEqual([]);
  });

  it('is noticed when another one of its name and another UID took its place', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    remove(objects, SECOND.name);
    await cluster.store({ ...SECOND, uid: 'another' });
    expect(await cluster.missing()).toMatchObject([{ name: SECOND.name, harm: true }]);
  });

  it.each(['without its signature', 'with another signature of its own'])(
    'is noticed when it comes back %s, also in a cluster that never knew it',
    async (how) => {
      const objects = new MemoryBucket();
      const cluster = await stored(objects);
      const key = `backups/${SECOND.name}/longshore-checksums.json`;
      const before = new Map(objects.objects);
      remove(objects, SECOND.name);
      if (how.startsWith('with another')) await cluster.store(SECOND);
      else {
        for (const [name, bytes] of before) objects.objects.set(name, bytes);
        objects.objects.delete(key);
      }
      const others = await Cluster.of(objects);
      expect(await others.missing()).toMatchObject([
        { name: SECOND.name, harm: true, text: expect.stringContaining('replaced') as unknown },
      ]);
    },
  );

  it('cannot be excused by a forged or a copied note', async () => {
    const noted = new MemoryBucket();
    await (await stored(noted)).delete(THIRD.name);
    const key = `metadata/longshore-deleted/${THIRD.name}/uid-${THIRD.name}.json`;
    const note = noted.objects.get(key)?.toString() ?? '';
    for (const forged of [
      note,
      note.replaceAll(THIRD.name, SECOND.name),
      note.replace(/"mac":"../, '"mac":"00'),
      note.replace(/,"signature":.*/, '}'),
      note.replace(/"key":"..../, '"key":"0000'),
      'null',
    ]) {
      const objects = new MemoryBucket();
      const cluster = await stored(objects);
      remove(objects, SECOND.name);
      const at = `metadata/longshore-deleted/${SECOND.name}/uid-${SECOND.name}.json`;
      objects.objects.set(at, Buffer.from(forged));
      expect(await cluster.missing()).toMatchObject([{ name: SECOND.name, harm: true }]);
    }
  });

  it.each(['deleted by this cluster', 'deleted by another one'])(
    'replaces a note that somebody planted before the backup was %s',
    async (who) => {
      const objects = new MemoryBucket();
      const cluster = await stored(objects);
      const other = await Cluster.of(objects);
      for (const [name, backup] of cluster.known) other.known.set(name, backup);
      const at = `metadata/longshore-deleted/${SECOND.name}/uid-${SECOND.name}.json`;
      const forged = { version: 1, uid: `uid-${SECOND.name}`, deleted: 'x', states: ['deleted'] };
      objects.objects.set(at, Buffer.from(JSON.stringify(forged)));
      await (who === 'deleted by another one' ? other : cluster).delete(SECOND.name);
      expect(await cluster.missing()).toEqual([]);
    },
  );

  it('cannot be excused by backups that somebody stores', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    const forged = backupOf({ name: 'velero', completed: '2026-11-28T05:00:00Z' });
    objects.objects.set('backups/velero/velero-backup.json', Buffer.from(JSON.stringify(forged)));
    const other = await Cluster.of(objects, 'another');
    await other.store({ name: 'other', completed: '2026-11-28T05:00:00Z' });
    remove(objects, SECOND.name);
    expect(await cluster.missing()).toMatchObject([{ name: SECOND.name, harm: true }]);
    // Older than the missing backup: this cluster has changed from Velero to Longshore.
    const newestUnsigned = '2026-11-25T01:00:00Z';
    expect(await cluster.missing(NOW, { newestUnsigned })).toMatchObject([{ harm: true }]);
  });
});

describe('no backup is called missing', () => {
  it('that Longshore deleted, before or after it expired, whatever the clock said', async () => {
    const cluster = await stored();
    await cluster.delete(SECOND.name);
    await cluster.delete(FIRST.name, NOW + 400n * DAY);
    expect(await cluster.missing()).toEqual([]);
    // Velero allows the folder of notes.
    expect(await foreignFolders(cluster.bucket.listFolders(''))).toBeUndefined();
  });

  it('that another cluster with the same bucket and password deleted', async () => {
    const objects = new MemoryBucket();
    const [one, two] = [await stored(objects), await Cluster.of(objects)];
    for (const [name, backup] of one.known) two.known.set(name, backup);
    await two.store({ name: 'theirs', completed: '2026-11-29T02:00:00Z' });
    await one.store({ name: 'ours', completed: '2026-11-29T02:00:00Z' });
    await two.delete(SECOND.name);
    await one.delete(THIRD.name);
    for (const cluster of [one, two]) expect(await cluster.missing()).toEqual([]);
  });

  it('that has expired by now', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    remove(objects, SECOND.name);
    expect(await cluster.missing(NOW + 400n * DAY)).toEqual([]);
  });

  it('that is still there, or is being deleted', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    remove(objects, SECOND.name);
    const backups = new Map([[SECOND.name, 'Deleting']]);
    expect(await cluster.missing(NOW, { backups })).toEqual([]);
  });

  it('by a backup that is unsigned or changed, or whose key is unknown', async () => {
    const objects = new MemoryBucket();
    await stored(objects);
    remove(objects, SECOND.name);
    expect(await (await Cluster.of(objects, 'another')).missing()).toEqual([]);
    objects.objects.delete(`backups/${THIRD.name}/longshore-checksums.json`);
    // The last backup names the changed backup. No signed backup names the missing backup.
    expect(await (await Cluster.of(objects)).missing()).toMatchObject([{ name: THIRD.name }]);
  });

  it('in a bucket that is written once', async () => {
    const cluster = await stored(
      new WriteOnceBucket(new MemoryBucket()) as unknown as MemoryBucket,
    );
    await cluster.delete(SECOND.name);
    expect(await cluster.missing()).toEqual([]);
  });

  it('after parallel backups, of which one was deleted', async () => {
    const cluster = await stored();
    const before = new Map(cluster.known);
    await cluster.store({ name: 'a', completed: '2026-11-29T03:00:00Z' });
    const first = new Map(cluster.known);
    cluster.known.clear();
    for (const [name, backup] of before) cluster.known.set(name, backup);
    await cluster.store({ name: 'b', completed: '2026-11-29T03:00:00Z' });
    for (const [name, backup] of first) cluster.known.set(name, backup);
    await cluster.delete('a');
    await cluster.delete(LAST.name);
    expect(await cluster.missing()).toEqual([]);
  });
});

describe('nothing is claimed of a missing backup', () => {
  it('where this cluster made a later backup without a signature, unless the location requires one', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    remove(objects, SECOND.name);
    const newestUnsigned = '2026-11-28T05:00:00Z';
    expect(await cluster.missing(NOW, { newestUnsigned })).toMatchObject([
      { harm: false, text: expect.stringContaining('may have deleted it') as unknown },
    ]);
    const strict = await Cluster.of(objects, 'secret', true);
    expect(await strict.missing(NOW, { newestUnsigned })).toMatchObject([
      { name: SECOND.name, harm: true },
    ]);
  });

  it('where a lifecycle rule or a copy left out all backups up to a day', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    for (const { name } of nights.slice(0, 2)) remove(objects, name);
    expect(await cluster.missing()).toMatchObject([
      {
        name: SECOND.name,
        harm: false,
        text: expect.stringContaining('no older backup') as unknown,
      },
    ]);
  });
});

describe('notes of deletions', () => {
  it('excuse a backup with the key that signed them, which another cluster may give', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    const other = await Cluster.of(objects, 'another');
    other.known.set(SECOND.name, backupOf(SECOND));
    await other.delete(SECOND.name);
    expect(await cluster.missing()).toMatchObject([
      {
        harm: true,
        text: expect.stringContaining('longshore repository add-archive-keys') as unknown,
      },
    ]);
    const earlierKeys = [(await signingKey('another')).toString('hex')];
    const signing = await signingBy({ current: 'secret', others: [], earlierKeys });
    signWith(cluster.bucket, { signing, isRequired: false });
    expect(await cluster.missing()).toEqual([]);
  });

  it('are stored after the deletion if the bucket was full, and their failure fails nothing', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    const put = objects.put.bind(objects);
    let isFull = 1;
    objects.put = async (key, body, options) => {
      if (isFull-- > 0) throw new CodedError('STORAGE_FULL', 'full');
      await put(key, body, options);
    };
    await cluster.delete(SECOND.name);
    expect(await cluster.missing()).toEqual([]);
    isFull = Infinity;
    await cluster.delete(FIRST.name);
    expect(await cluster.archive.has(FIRST.name)).toBe(false);
  });

  it('go when nothing names their backups any more, and never before', async () => {
    const objects = new MemoryBucket();
    const cluster = await stored(objects);
    const notes = (): string[] =>
      [...objects.objects.keys()].filter((key) => key.startsWith('metadata/'));
    await cluster.delete(SECOND.name);
    const kept = notes();
    for (let i = 0; i < 80; i++) {
      await cluster.store({ name: `b${i}`, completed: '2026-11-29T04:00:00Z' });
      await cluster.delete(`b${i}`, NOW + DAY);
    }
    expect(notes().length).toBe(81);
    const late = NOW + 20n * DAY;
    await cluster.store({ name: 'last', completed: '2026-11-29T05:00:00Z' });
    await cluster.delete('last', late);
    expect(notes()).toEqual(expect.arrayContaining(kept));
    expect(notes().length).toBeLessThan(5);
    expect(await cluster.missing()).toEqual([]);
  });
});
