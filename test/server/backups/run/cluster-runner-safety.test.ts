import { describe, expect, it } from 'vitest';
import { BackupArchive, ScratchFile, signingBy, signWith } from '../../../../src/archive/index.ts';
import { CanceledError, CodedError } from '../../../../src/base/index.ts';
import { BACKUPS } from '../../../../src/kube/index.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';

import { Rig, configMaps, reasonOf, pathsIn } from './support/rig.ts';

const pods = (annotations: Record<string, string>): FakeCluster =>
  new FakeCluster().namespaces('a').add('pods', {
    metadata: { namespace: 'a', name: 'p', annotations },
    spec: { containers: [{ name: 'main' }] },
  });
const HOOKS = {
  'pre.hook.backup.velero.io/command': 'freeze',
  'post.hook.backup.velero.io/command': 'thaw',
};

describe('a run that others interfere with', () => {
  it('a pod that a server froze and that lost its lead is thawed by the next one, whose own freeze fails', async () => {
    let isFrozen = false;
    const ran: string[] = [];
    const rig: Rig = new Rig({
      cluster: pods({ ...HOOKS, 'pre.hook.backup.velero.io/on-error': 'Fail' }),
      client: {
        exec: ({ command: [word = ''] }: { command: string[] }) => {
          ran.push(word);
          if (word === 'freeze') {
            // Like fsfreeze: EBUSY.
            if (isFrozen) return Promise.reject(new CodedError('EXEC_FAILED', 'exit code 1'));
            isFrozen = true;
            // Right after it this process is killed, or loses leadership.
            if (ran.length === 1) rig.isLeading = false;
          } else isFrozen = false;
          return Promise.resolve({ stdout: '', stderr: '' });
        },
      },
    });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'LEADERSHIP_LOST' });
    expect([isFrozen, ran]).toEqual([true, ['freeze']]);
    rig.isLeading = true;
    await rig.run();
    expect([isFrozen, ran]).toEqual([false, ['freeze', 'freeze', 'thaw']]);
  });

  it('a pod whose freeze has run and whose answer never comes is thawed', async () => {
    let isFrozen = false;
    const rig: Rig = new Rig({
      cluster: pods({
        ...HOOKS,
        'pre.hook.backup.velero.io/timeout': '300ms',
        'pre.hook.backup.velero.io/on-error': 'Fail',
      }),
      client: {
        exec: ({ command: [word = ''], signal }: { command: string[]; signal: AbortSignal }) => {
          isFrozen = word === 'freeze';
          if (word !== 'freeze') return Promise.resolve({ stdout: '', stderr: '' });
          // A network partition sends no answer.
          return new Promise((_resolve, reject) => {
            signal.addEventListener('abort', () => {
              reject(signal.reason as Error);
            });
          });
        },
      },
    });
    await rig.run();
    expect(isFrozen).toBe(false);
  });

  it('hooks after which an answer was lost thaw the pod, also where one after it fails otherwise', async () => {
    const ran: string[] = [];
    const rig: Rig = new Rig({
      cluster: pods({}),
      spec: {
        hooks: {
          resources: [
            {
              name: 'h',
              pre: [
                { exec: { command: ['freeze'], onError: 'Continue' } },
                { exec: { command: ['check'], onError: 'Fail' } },
              ],
              post: [{ exec: { command: ['thaw'] } }],
            },
          ],
        },
      },
      client: {
        exec: ({ command: [word = ''] }: { command: string[] }) => {
          ran.push(word);
          if (word === 'freeze') {
            const facts = { isSent: true };
            return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'reset', { facts }));
          }
          if (word === 'check') return Promise.reject(new CodedError('EXEC_FAILED', 'exit code 1'));
          return Promise.resolve({ stdout: '', stderr: '' });
        },
      },
    });
    await rig.run();
    expect(ran).toEqual(['freeze', 'check', 'thaw']);
  });

  it('a process that slept while it stored its files removes none of those that the next one has stored since', async () => {
    const rig: Rig = new Rig({ cluster: configMaps(3) });
    const { bucket } = rig;
    const next = new Rig({ cluster: configMaps(3), bucket });
    const put = bucket.put.bind(bucket);
    let hasSlept = false;
    bucket.put = async (...given: Parameters<typeof put>) => {
      if (given[0].endsWith('b1.tar.gz') && !hasSlept) {
        hasSlept = true;
        // A second server now leads, continues the journal, and ends the backup.
        expect(await next.run()).toMatchObject({ phase: 'Finalizing' });
        rig.isLeading = false;
        rig.abort.abort(new CanceledError('shutdown'));
        rig.leaving.abort(new CanceledError('shutdown'));
        throw rig.abort.signal.reason as Error;
      }
      await put(...given);
    };
    await reasonOf(rig.run());
    expect(hasSlept).toBe(true);
    expect(await new BackupArchive(bucket).has('b1')).toBe(true);
    // Three objects and their namespace, each in two places.
    expect(await pathsIn(rig)).toHaveLength(9);
  });

  it('a Backup that somebody else stores under its name and UID does not end it', async () => {
    const rig = new Rig({ cluster: configMaps(3) });
    const passwords = { current: 'a secret', others: [], earlierKeys: [] };
    signWith(rig.bucket, { signing: await signingBy(passwords), isRequired: false });
    const forged = {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      spec: {},
      metadata: { name: 'b1', namespace: 'velero', uid: 'u1' },
      status: { phase: 'Completed' },
    };
    rig.bucket.objects.set('backups/b1/velero-backup.json', Buffer.from(JSON.stringify(forged)));
    const marks = { 'longshore.io/signed': 'true' };
    expect(await rig.run()).toMatchObject({ phase: 'Finalizing', marks });
    const stored = await new BackupArchive(rig.bucket).open('b1');
    expect(stored.signature).toBe('signed');
    expect(await pathsIn(rig)).toHaveLength(9);
    // A backup with this server's own signature is accepted.
    expect(await rig.run()).toMatchObject({ phase: 'Finalizing', marks });
  });

  it('hooks that thaw are run again where the connection ended without an answer', async () => {
    const ran: string[] = [];
    const rig: Rig = new Rig({
      cluster: pods(HOOKS),
      client: {
        exec: ({ command: [word = ''] }: { command: string[] }) => {
          ran.push(word);
          // Like execIn after a kubelet shutdown (kube/client/exec.ts, failureOf).
          return ran.length === 2
            ? Promise.reject(new CodedError('EXEC_FAILED', 'ended', { facts: { isSent: true } }))
            : Promise.resolve({ stdout: '', stderr: '' });
        },
      },
    });
    await rig.run();
    expect(ran).toEqual(['freeze', 'thaw', 'thaw']);
  });

  it('a signed backup names the newest signed one of its location, as it lies in the bucket', async () => {
    const passwords = { current: 'a secret', others: [], earlierKeys: [] };
    const signing = await signingBy(passwords);
    const earlierOf = (
      name: string,
      at: string,
      location = 'default',
      isSigned = true,
    ): object => ({
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      spec: { storageLocation: location },
      metadata: {
        name,
        namespace: 'velero',
        uid: `uid-${name}`,
        annotations: isSigned ? { 'longshore.io/signed': 'true' } : {},
      },
      status: { phase: 'Completed', completionTimestamp: at, expiration: '2027-01-01T00:00:00Z' },
    });
    const earlier = [
      earlierOf('old', '2026-11-20T00:00:00Z'),
      earlierOf('newest', '2026-11-22T00:00:00Z'),
      earlierOf('unsigned', '2026-11-23T00:00:00Z', 'default', false),
      earlierOf('elsewhere', '2026-11-24T00:00:00Z', 'other'),
      // Its files are deleted.
      earlierOf('gone', '2026-11-25T00:00:00Z'),
    ];
    const collect = (resource: unknown, _: unknown, take: (item: unknown) => unknown[]): unknown =>
      Promise.resolve(
        resource === BACKUPS
          ? earlier.flatMap(take)
          : take({ metadata: { name: 'a' }, kind: 'Namespace' }),
      );
    const rig = new Rig({
      cluster: configMaps(3),
      client: { collect },
      spec: { storageLocation: 'default' },
    });
    signWith(rig.bucket, { signing, isRequired: false });
    const archive = new BackupArchive(rig.bucket);
    const contents = await ScratchFile.create(tempDirectory('earlier'));
    for (const metadata of earlier.slice(0, 4)) {
      const { name } = (metadata as { metadata: { name: string } }).metadata;
      await archive.put(name, {
        itemOperations: [],
        volumeInfos: [],
        podVolumeBackups: [],
        volumeSnapshots: [],
        results: {},
        resourceList: {},
        contents,
        metadata,
      });
    }
    await contents.close();
    await rig.run();
    const { link } = await archive.open('b1');
    const { mac } = (await archive.open('newest')).link;
    expect(link.previous).toEqual({
      name: 'newest',
      uid: 'uid-newest',
      mac,
      completed: '2026-11-22T00:00:00Z',
      expiration: '2027-01-01T00:00:00Z',
    });
  });
});
