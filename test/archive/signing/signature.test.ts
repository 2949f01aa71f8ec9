import { gzipSync } from 'node:zlib';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  BackupArchive,
  type NewBackup,
  ScratchFile,
  signingBy,
  type SigningPasswords,
  signingKey,
  signWith,
  type StoredArchive,
  surveyLocation,
  TarballWriter,
} from '../../../src/archive/index.ts';
import { ManualClock, parseGoTime } from '../../../src/base/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const scratch = tempDirectory('signatures');
const nowNs = parseGoTime('2026-11-29T00:00:00Z');
const files: ScratchFile[] = [];
afterEach(async () => {
  await Promise.all(files.splice(0).map((file) => file.close()));
});

const only = (current: string): SigningPasswords => ({ current, others: [], earlierKeys: [] });
const backupOf = (name: string, phase: string, uid = `uid-${name}`): object => ({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name, namespace: 'velero', uid },
  spec: {},
  status: { phase },
});

async function tarballOf(text: string): Promise<ScratchFile> {
  await using tarball = await TarballWriter.create(scratch, new ManualClock(nowNs));
  await tarball.add('resources/configmaps/namespaces/a/b.json', Buffer.from(text));
  const contents = await tarball.finish();
  files.push(contents);
  return contents;
}

async function newBackup(name: string, phase = 'Completed', text = '{}'): Promise<NewBackup> {
  return {
    metadata: backupOf(name, phase),
    contents: await tarballOf(text),
    itemOperations: [],
    volumeInfos: [],
    results: {},
    resourceList: {},
    podVolumeBackups: [],
    volumeSnapshots: [],
  };
}

/** The objects, seen by a server with these passwords; none for a program that has none. */
async function seenBy(
  objects: MemoryBucket['objects'],
  passwords?: SigningPasswords,
  isRequired = false,
): Promise<MemoryBucket> {
  const bucket = new MemoryBucket();
  for (const [key, bytes] of objects) bucket.objects.set(key, bytes);
  const signing = passwords && (await signingBy(passwords));
  signWith(bucket, { signing, isRequired });
  return bucket;
}
const open = (bucket: MemoryBucket, name = 'b1'): Promise<StoredArchive> =>
  new BackupArchive(bucket).open(name);
const json = (bucket: MemoryBucket, key: string): Record<string, unknown> =>
  JSON.parse(bucket.objects.get(key)?.toString() ?? '{}') as Record<string, unknown>;
const putJson = (bucket: MemoryBucket, key: string, value: object): void =>
  void bucket.objects.set(key, Buffer.from(JSON.stringify(value)));
const SUMS = 'backups/b1/longshore-checksums.json';
const METADATA = 'backups/b1/velero-backup.json';

describe('the signature of a backup', () => {
  let stored: MemoryBucket['objects'];
  beforeAll(async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    await new BackupArchive(bucket).put('b1', await newBackup('b1'));
    stored = bucket.objects;
  });

  it('is right where nobody changed anything, and whoever lacks the password does not know', async () => {
    expect((await open(await seenBy(stored, only('secret')))).signature).toBe('signed');
    expect((await open(await seenBy(stored))).signature).toBe('unknown');
    expect((await open(await seenBy(stored, only('another')))).signature).toBe('unknown');
  });

  it('stays right after the password was changed', async () => {
    const earlierKeys = [(await signingKey('secret')).toString('hex')];
    const after = { ...only('another'), earlierKeys };
    expect((await open(await seenBy(stored, after))).signature).toBe('signed');
    const meanwhile = { ...only('another'), others: ['secret'] };
    expect((await open(await seenBy(stored, meanwhile))).signature).toBe('signed');
  });

  it('stays right when the backup is finished later', async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    const archive = new BackupArchive(bucket);
    await archive.put('b1', await newBackup('b1', 'Finalizing'));
    expect((await open(bucket)).signature).toBe('signed');
    await archive.update('b1', { metadata: backupOf('b1', 'Completed'), results: {} });
    expect((await open(bucket)).signature).toBe('signed');
  });

  it('is missing where a Velero finished a backup of ours', async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    await new BackupArchive(bucket).put('b1', await newBackup('b1', 'Finalizing'));
    putJson(bucket, METADATA, backupOf('b1', 'Completed'));
    const { signature } = await open(bucket);
    expect(signature).toBe('unsigned');
  });

  it('is missing where a server of an earlier version finished the backup', async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    await new BackupArchive(bucket).put('b1', await newBackup('b1', 'Finalizing'));
    // The archive keeps unknown fields.
    const sums = json(bucket, SUMS) as { states: string[]; files: Record<string, unknown> };
    const files = { ...sums.files, metadata: [] };
    putJson(bucket, SUMS, { ...sums, files, states: [...sums.states, 'uid-b1 Completed '] });
    putJson(bucket, METADATA, backupOf('b1', 'Completed'));
    expect((await open(bucket)).signature).toBe('unsigned');
  });

  it('is not made again for checksums that somebody changed before the backup was over', async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    const archive = new BackupArchive(bucket);
    await archive.put('b1', await newBackup('b1', 'Finalizing'));
    const sums = json(bucket, SUMS) as { files: Record<string, unknown>; signature?: object };
    putJson(bucket, SUMS, { ...sums, files: { ...sums.files, contents: [] } });
    await archive.update('b1', { metadata: backupOf('b1', 'Completed') });
    expect((await open(bucket)).signature).toBe('unsigned');
  });

  it('that is wrong keeps a backup from being finished', async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    const archive = new BackupArchive(bucket);
    await archive.put('b1', await newBackup('b1', 'Finalizing'));
    const sums = json(bucket, SUMS) as { signature: object };
    putJson(bucket, SUMS, { ...sums, signature: { ...sums.signature, mac: '00' } });
    await expect(
      archive.update('b1', { metadata: backupOf('b1', 'Completed') }),
    ).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
  });

  it('is made of no password that everybody knows', async () => {
    const bucket = await seenBy(new Map(), only('static-passw0rd'));
    await new BackupArchive(bucket).put('b1', await newBackup('b1'));
    expect((await open(bucket)).signature).toBe('unsigned');
  });

  it('covers which files there are', async () => {
    const bucket = await seenBy(stored, only('secret'));
    const more = [{ metadata: { name: 'forged' } }];
    const key = 'backups/b1/b1-csi-volumesnapshots.json.gz';
    bucket.objects.set(key, gzipSync(JSON.stringify(more)));
    expect(await (await open(bucket)).objects('csiVolumeSnapshots')).toEqual([]);
    bucket.objects.delete(SUMS);
    expect(await (await open(bucket)).objects('csiVolumeSnapshots')).toEqual(more);
  });

  it('is not asked for once and then taken away', async () => {
    const bucket = await seenBy(stored, only('secret'));
    const archive = await open(bucket);
    const forged = await seenBy(new Map());
    await new BackupArchive(forged).put('b1', await newBackup('b1', 'Completed', '{"a":1}'));
    for (const [key, bytes] of forged.objects) bucket.objects.set(key, bytes);
    await expect(archive.openContents({ directory: scratch })).rejects.toMatchObject({
      code: 'DAMAGED_ARCHIVE',
    });
  });

  it('is required of a Backup that the cluster knows as signed', async () => {
    const known = { metadata: { annotations: { 'longshore.io/signed': 'true' } } };
    const bucket = await seenBy(stored, only('secret'));
    const signed = await open(bucket);
    expect(() => {
      signed.assertTrusted(known);
    }).not.toThrow();
    bucket.objects.delete(SUMS);
    const bare = await open(bucket);
    expect(() => {
      bare.assertTrusted(known);
    }).toThrow('cannot find its signature any more');
    // Who has no password can check nothing, and accuses nobody.
    const unable = await open(await seenBy(stored));
    expect(() => {
      unable.assertTrusted(known);
    }).not.toThrow();
  });

  it('is not accepted for an earlier state of the backup', async () => {
    const bucket = await seenBy(new Map(), only('secret'));
    const archive = new BackupArchive(bucket);
    await archive.put('b1', await newBackup('b1', 'Finalizing', 'before'));
    expect((await open(bucket)).marks).toEqual({ 'longshore.io/signed': 'true' });
    const earlier = new Map(bucket.objects);
    const put = bucket.put.bind(bucket);
    let between: Buffer | undefined;
    bucket.put = async (key, ...given) => {
      await put(key, ...given);
      if (key === SUMS) between ??= bucket.objects.get(key);
    };
    const contents = await tarballOf('after');
    await archive.update('b1', { contents, metadata: backupOf('b1', 'Completed') });
    const last = await open(bucket);
    const known = { metadata: { annotations: last.marks } };
    expect(() => {
      last.assertTrusted(known);
    }).not.toThrow();
    // Signed while files were being replaced: both tarballs are allowed.
    const CONTENTS = 'backups/b1/b1.tar.gz';
    bucket.objects.set(CONTENTS, earlier.get(CONTENTS) ?? Buffer.alloc(0));
    bucket.objects.set(SUMS, between ?? Buffer.alloc(0));
    const rolledBack = await open(bucket);
    expect(rolledBack.signature).toBe('signed');
    expect(() => {
      rolledBack.assertTrusted(known);
    }).toThrow('brought back files of an earlier state');
    const knownObjects = {
      backups: new Map([['b1', 'Completed']]),
      signed: new Set(['b1']),
      signatures: new Map([['b1', last.link.mac ?? '']]),
      restores: new Set<string>(),
    };
    const survey = await surveyLocation(bucket, () => Promise.resolve(knownObjects), { nowNs });
    expect(survey.findings).toMatchObject([{ kind: 'WrongSignature', name: 'b1', harm: true }]);
  });

  const attacks: readonly (readonly [string, (bucket: MemoryBucket) => void | Promise<void>])[] = [
    [
      'another sum of the tarball',
      (bucket) => {
        const sums = json(bucket, SUMS) as { files: Record<string, unknown> };
        sums.files.contents = [];
        putJson(bucket, SUMS, sums);
      },
    ],
    [
      'another state, so that sums of rewritten files do not count',
      (bucket) => {
        putJson(bucket, METADATA, {
          ...backupOf('b1', 'Completed'),
          status: { phase: 'Completed', completionTimestamp: '2026-11-29T01:00:00Z' },
        });
      },
    ],
    [
      'another UID',
      (bucket) => {
        putJson(bucket, METADATA, backupOf('b1', 'Completed', 'another'));
      },
    ],
    [
      'a mac of zeros',
      (bucket) => {
        const sums = json(bucket, SUMS) as { signature: object };
        putJson(bucket, SUMS, { ...sums, signature: { ...sums.signature, mac: '0'.repeat(64) } });
      },
    ],
    [
      'an empty mac',
      (bucket) => {
        const sums = json(bucket, SUMS) as { signature: object };
        putJson(bucket, SUMS, { ...sums, signature: { ...sums.signature, mac: '' } });
      },
    ],
    [
      'files of another backup under this name',
      async (bucket) => {
        const own = await seenBy(new Map(), only('secret'));
        await new BackupArchive(own).put('b2', await newBackup('b2'));
        const sums = own.objects.get('backups/b2/longshore-checksums.json') ?? Buffer.alloc(0);
        bucket.objects.set(SUMS, sums);
        bucket.objects.set(METADATA, Buffer.from(JSON.stringify(backupOf('b1', 'Completed', 'uid-b2')))); // prettier-ignore
      },
    ],
  ];
  it.each(attacks)('is refused with %s', async (_what, attack) => {
    const bucket = await seenBy(stored, only('secret'));
    await attack(bucket);
    const outcome = await open(bucket).then(
      (archive) => archive.signature,
      (error: unknown) => String(error),
    );
    expect(outcome).toMatch(/^wrong$|checksum is wrong/);
    // The same attack succeeds where nothing is signed, or the files are not read at all.
    if (outcome !== 'wrong') return;
    const archive = await open(bucket);
    expect(() => {
      archive.assertTrusted();
    }).toThrow('the signature of backup b1 is wrong');
  });

  it('is required where the location says so', async () => {
    const own = await seenBy(stored, only('secret'), true);
    const signed = await open(own);
    expect(() => {
      signed.assertTrusted();
    }).not.toThrow();
    own.objects.delete(SUMS);
    const unsigned = await open(own);
    expect(unsigned.signature).toBe('unsigned');
    expect(() => {
      unsigned.assertTrusted();
    }).toThrow('needs a signature, since its location has the annotation');
    const foreign = await open(await seenBy(stored, only('another'), true));
    expect(() => {
      foreign.assertTrusted();
    }).toThrow('the repository password that signed it is not here');
    own.objects.delete(METADATA);
  });

  it('is told by the survey of a location, for each backup', async () => {
    const bucket = await seenBy(stored, only('secret'));
    const archive = new BackupArchive(bucket);
    await archive.put('b2', await newBackup('b2'));
    await archive.put('b3', await newBackup('b3'));
    bucket.objects.delete('backups/b2/longshore-checksums.json');
    putJson(bucket, 'backups/b3/velero-backup.json', backupOf('b3', 'Completed', 'another'));
    const all = ['b1', 'b2', 'b3'].map((name) => [name, 'Completed'] as const);
    const known = { backups: new Map(all), restores: new Set<string>() };
    const surveyed = (signed: readonly string[]) =>
      surveyLocation(bucket, () => Promise.resolve({ ...known, signed: new Set(signed) }), {
        nowNs,
      });
    const survey = await surveyed([]);
    expect(survey.signatures).toEqual({ signed: 1, unsigned: 1, wrong: 1 });
    expect(survey.findings.map(({ kind, name, harm }) => [kind, name, harm])).toEqual([
      ['NotSigned', 'b2', false],
      ['WrongSignature', 'b3', true],
    ]);
    const [stripped] = (await surveyed(['b1', 'b2'])).findings;
    expect(stripped).toMatchObject({ kind: 'NotSigned', name: 'b2', harm: true });
  });
});
