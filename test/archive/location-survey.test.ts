import { describe, expect, it } from 'vitest';
import { type KnownObjects, surveyLocation } from '../../src/archive/index.ts';
import { CodedError, parseGoTime } from '../../src/base/index.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';

const nowNs = parseGoTime('2026-11-26T08:00:00Z');

const known = (
  backups: Record<string, string> = {},
  restores: string[] = [],
): (() => Promise<KnownObjects>) => {
  const objects = { backups: new Map(Object.entries(backups)), restores: new Set(restores) };
  return () => Promise.resolve(objects);
};

function metadata(name: string, status: object = { phase: 'Completed' }): string {
  const meta = { name, namespace: 'velero', uid: `uid-${name}` };
  return JSON.stringify({
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: meta,
    spec: {},
    status,
  });
}

class Place extends MemoryBucket {
  add(key: string, text = ''): this {
    this.objects.set(key, Buffer.from(text));
    return this;
  }
  addBackup(name: string, status?: object): this {
    this.add(`backups/${name}/velero-backup.json`, metadata(name, status));
    return this.add(`backups/${name}/${name}.tar.gz`);
  }
}

const found = async (
  bucket: Place,
  load: () => Promise<KnownObjects>,
): Promise<(readonly [string, string, boolean])[]> => {
  const { findings } = await surveyLocation(bucket, load, { nowNs });
  return findings.map(({ kind, name, harm }) => [kind, name, harm] as const);
};

describe('what lies in a location', () => {
  it('is as it should be', async () => {
    const bucket = new Place().addBackup('b1').add('restores/r1/restore-r1-logs.gz');
    bucket.add('backups/b2/longshore-journal/uid/000001').add('kopia/app/kopia.repository');
    const survey = await surveyLocation(
      bucket,
      known({ b1: 'Completed', b2: 'InProgress', b3: 'New', b4: 'FailedValidation' }, ['r1']),
      { nowNs },
    );
    expect(survey).toEqual({ backups: 1, restores: 1, signatures: {}, states: {}, findings: [] });
  });

  it.each([
    ['files without metadata', ['backups/b1/b1.tar.gz'], {}, 'OrphanedFiles', 'b1'],
    [
      'a journal that nobody goes on with',
      ['backups/b1/longshore-journal/u/1'],
      {},
      'UnfinishedBackup',
      'b1',
    ],
    [
      'a journal of a Backup that is over',
      ['backups/b1/longshore-journal/u/1'],
      { b1: 'Failed' },
      'UnfinishedBackup',
      'b1',
    ],
    ['a name that no Backup can have', ['backups/Über/x'], {}, 'OrphanedFiles', 'Über'],
    ['a file beside the folders', ['backups/note.txt_'], {}, 'OrphanedFiles', 'note.txt_'],
    ['a folder that is not ours', ['mine/x'], {}, 'ForeignFolder', '/'],
    ['a Backup without files', [], { b1: 'Completed' }, 'BackupWithoutFiles', 'b1'],
  ])('has %s', async (_what, keys, backups, kind, name) => {
    const bucket = new Place();
    for (const key of keys) bucket.add(key);
    const all = await found(bucket, known(backups));
    expect(all.filter(([, , harm]) => harm).map((each) => each.slice(0, 2))).toContainEqual([
      kind,
      name,
    ]);
  });

  it('has a backup without its objects, and one whose metadata are damaged or of another one', async () => {
    const bucket = new Place().add('backups/b1/velero-backup.json', metadata('b1'));
    bucket.add('backups/b2/velero-backup.json', '{').add('backups/b2/b2.tar.gz');
    bucket.add('backups/b3/velero-backup.json', metadata('other')).add('backups/b3/b3.tar.gz');
    expect(await found(bucket, known({ b1: 'Completed' }))).toEqual([
      ['IncompleteBackup', 'b1', true],
      ['DamagedBackup', 'b2', true],
      ['DamagedBackup', 'b3', true],
    ]);
  });

  it('has what is only good to know', async () => {
    const bucket = new Place().addBackup('b1').addBackup('b2', {
      phase: 'InProgress',
      expiration: '2026-12-26T08:00:00Z',
    });
    bucket.add('restores/r1/x');
    expect(await found(bucket, known({ b3: 'Failed' }))).toEqual([
      ['BackupWithoutFiles', 'b3', false],
      ['BackupNotInCluster', 'b1', false],
      ['UnfinishedBackup', 'b2', false],
      ['RestoreNotInCluster', 'r1', false],
    ]);
  });

  it('may change meanwhile: what begins, ends or goes while it is looked at is nothing wrong', async () => {
    // The cluster is asked after the bucket: a backup that began in between is known.
    const begins = new Place().add('backups/b1/longshore-journal/u/1');
    expect(await found(begins, known({ b1: 'InProgress' }))).toEqual([]);
    const ends = new Place();
    expect(
      await found(ends, () => {
        ends.addBackup('b1');
        return known({ b1: 'Completed' })();
      }),
    ).toEqual([]);
    const goes = new Place().add('backups/b1/b1-logs.gz');
    expect(
      await found(goes, () => {
        goes.objects.clear();
        return known()();
      }),
    ).toEqual([]);
    const finishes = new Place().add('backups/b1/b1-logs.gz');
    expect(
      await found(finishes, () => {
        finishes.addBackup('b1');
        return known()();
      }),
    ).toEqual([]);
  });

  it('that cannot be listed is no empty one', async () => {
    const bucket = new Place();
    bucket.list = async function* () {
      await Promise.resolve();
      yield 'backups/b1/velero-backup.json';
      throw new CodedError('STORAGE_UNAVAILABLE', 'the second page did not come');
    };
    await expect(surveyLocation(bucket, known(), { nowNs })).rejects.toThrow('second page');
  });
});
