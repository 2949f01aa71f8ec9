import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import { cancelInPlace } from '../../../src/cli/backups/in-place/cancel-in-place.ts';
import type { Session } from '../../../src/cli/backups/session.ts';
import {
  BACKUPS,
  DATA_DOWNLOADS,
  inPlaceConfig,
  KubeClient,
  type KubeObject,
  type Resource,
  RESTORES,
} from '../../../src/kube/index.ts';
import { CANCEL_ANNOTATION } from '../../../src/plugin/index.ts';
import { Api } from './support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('cancel');
});
afterAll(() => api[Symbol.asyncDispose]());

const noteOn = async (resource: Resource<KubeObject>, name: string): Promise<string | undefined> =>
  (await api.client.get(resource, { namespace: 'velero', name })).metadata.annotations?.[
    CANCEL_ANNOTATION
  ];

describe.each([
  { word: 'restore', resource: RESTORES },
  { word: 'backup', resource: BACKUPS },
])('longshore $word cancel', ({ word, resource }) => {
  it('notes on the object that it is to end, and says where that is seen', async () => {
    await api.add(resource, 'runs', { status: { phase: 'WaitingForPluginOperations' } });
    const { code, out } = await api.longshore(word, 'cancel', 'runs');
    expect([code, out]).toEqual([
      0,
      `${word} runs is told to end; see "longshore ${word} get runs"\n`,
    ]);
    expect(await noteOn(resource, 'runs')).toBe('true');
  });

  it('with --wait returns when it has ended, and says how', async () => {
    await api.add(resource, 'ends', { status: { phase: 'InProgress' } });
    const waiting = api.longshore(word, 'cancel', 'ends', '--wait');
    await expect.poll(() => noteOn(resource, 'ends'), { timeout: 20_000 }).toBe('true');
    await api.set(resource, 'ends', { phase: 'Failed' });
    expect(await waiting).toMatchObject({ code: 0, out: `${word} ends has ended: Failed\n` });
  });

  it('leaves another one alone that has got its name meanwhile', async () => {
    const old = await api.add(resource, 'anew', { status: { phase: 'InProgress' } });
    const { client } = api;
    const ref = { namespace: 'velero', name: 'anew' };
    await client.delete(resource, ref);
    await api.add(resource, 'anew', { status: { phase: 'InProgress' } });
    const find = vi.spyOn(KubeClient.prototype, 'find').mockResolvedValue(old);
    try {
      const { code, err } = await api.longshore(word, 'cancel', 'anew');
      expect(code).toBe(1);
      expect(err).toContain(`${word} anew was deleted before it could be told to end`);
    } finally {
      find.mockRestore();
    }
    expect(await noteOn(resource, 'anew')).toBeUndefined();
  });

  it('leaves one alone that is over, and says so; and says where there is none', async () => {
    await api.add(resource, 'over', { status: { phase: 'Completed' } });
    const over = await api.longshore(word, 'cancel', 'over');
    expect(over.err).toContain(`${word} over has ended already: Completed`);
    expect(over.code).toBe(1);
    expect(await noteOn(resource, 'over')).toBeUndefined();
    const none = await api.longshore(word, 'cancel', 'none');
    expect(none.err).toContain(`"longshore ${word} get" lists those that there are`);
    expect(none.code).toBe(1);
  });
});

describe('longshore restore cancel of a restore in place', () => {
  const add = async (
    name: string,
    pvc: string,
    { phase = 'InProgress', dryRun = false, isNamed = true, isInPlace = true } = {},
  ): Promise<void> => {
    const mover = { generation: 1, pod: 'p', lastPod: 'p', node: 'n', namedAt: '2026-01-01T00:00:00Z' }; // prettier-ignore
    await api.client.create(DATA_DOWNLOADS, {
      metadata: {
        namespace: 'velero',
        name,
        ...(isNamed && { annotations: { 'longshore.io/mover': JSON.stringify(mover) } }),
      },
      spec: {
        targetVolume: { namespace: 'shop', pvc, pv: '' },
        snapshotID: 'a',
        sourceNamespace: 'shop',
        backupStorageLocation: 'default',
        operationTimeout: '1m0s',
        datamover: 'longshore',
        ...(isInPlace && { dataMoverConfig: inPlaceConfig({ dryRun, keepExtra: false }) }),
      },
      status: { phase } as never,
    });
  };
  const isCanceled = async (name: string): Promise<boolean> =>
    (await api.client.get(DATA_DOWNLOADS, { namespace: 'velero', name })).spec.cancel === true;

  it('ends those of the PVC that run, and leaves others alone', async () => {
    await add('data-1', 'data', { phase: 'Completed' });
    await add('data-2', 'data');
    await add('other', 'data2');
    await add('filled', 'data', { isInPlace: false });
    const { code, out } = await api.longshore('restore', 'cancel', 'shop/data');
    expect([code, out]).toEqual([
      0,
      'the restore in place of shop/data (DataDownload velero/data-2) is told to end; it has when its phase is Canceled\n',
    ]);
    const names = ['data-1', 'data-2', 'other', 'filled'];
    expect(await Promise.all(names.map(isCanceled))).toEqual([false, true, false, false]);
    // Cancels by the name of its DataDownload. Other kinds of restores cannot be canceled by this
    // name.
    expect(await api.longshore('restore', 'cancel', 'other')).toMatchObject({ code: 0 });
    expect(await isCanceled('other')).toBe(true);
    const filled = await api.longshore('restore', 'cancel', 'filled');
    expect(filled.err).toContain('there is no Restore velero/filled');
  });

  it.each([
    ['writes', {}, 'the volume may hold files or blocks of before and of the backup: restore it'],
    ['counts', { dryRun: true }, 'nothing was written to the volume'],
    ['waits', { phase: 'New', isNamed: false }, 'nothing was written to the volume'],
  ])('with --wait of one that %s tells what became of the volume', async (pvc, how, state) => {
    await add(pvc, pvc, how);
    const waiting = api.longshore('restore', 'cancel', `shop/${pvc}`, '--wait');
    await expect.poll(() => isCanceled(pvc), { timeout: 20_000 }).toBe(true);
    await api.set(DATA_DOWNLOADS, pvc, { phase: 'Canceled' });
    const { code, out } = await waiting;
    expect(code).toBe(0);
    expect(out).toContain(`the restore in place of shop/${pvc} has ended: Canceled; ${state}`);
  });

  it('says that one has ended, that there is none, and that it was deleted', async () => {
    await add('over', 'over', { phase: 'Failed' });
    const over = await api.longshore('restore', 'cancel', 'shop/over');
    expect([over.code, over.err]).toEqual([1, expect.stringContaining('no restore in place of shop/over runs (DataDownload velero/over: Failed)')]); // prettier-ignore
    const none = await api.longshore('restore', 'cancel', 'shop/none');
    expect([none.code, none.err]).toEqual([1, expect.stringContaining('there is no restore in place of PVC shop/none')]); // prettier-ignore
    await add('gone', 'gone');
    const waiting = api.longshore('restore', 'cancel', 'shop/gone', '--wait');
    await expect.poll(() => isCanceled('gone'), { timeout: 20_000 }).toBe(true);
    await api.client.delete(DATA_DOWNLOADS, { namespace: 'velero', name: 'gone' });
    expect((await waiting).err).toContain('was deleted while it was waited for');
  });

  it('tells all of the PVC, also behind one that was deleted or made anew meanwhile', async () => {
    await Promise.all(['twice-1', 'twice-2', 'twice-3'].map((name) => add(name, 'twice')));
    const { client } = api;
    const refused = (code: string): CodedError => new CodedError(code, 'no');
    const patched: unknown[] = [];
    const session = {
      client: {
        list: client.list.bind(client),
        patch: (_: unknown, { name }: { name: string }, patch: object) => {
          patched.push([name, patch]);
          if (name === 'twice-1') return Promise.reject(refused('KUBE_NOT_FOUND'));
          return name === 'twice-2' ? Promise.reject(refused('KUBE_CONFLICT')) : Promise.resolve();
        },
      },
      namespace: 'velero',
      signal: new AbortController().signal,
    } as unknown as Session;
    const said = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    try {
      expect(await cancelInPlace('shop/twice', {}, session)).toBe(true);
      const lines = said.mock.calls.map(([line]) => String(line)).join('');
      expect(lines).toContain('DataDownload velero/twice-1 was deleted before it could be told');
      expect(lines).toContain('DataDownload velero/twice-2 was deleted before it could be told');
      expect(lines).toContain('(DataDownload velero/twice-3) is told to end');
    } finally {
      said.mockRestore();
    }
    const uidOf = async (name: string) =>
      (await client.get(DATA_DOWNLOADS, { namespace: 'velero', name })).metadata.uid;
    expect(patched).toContainEqual([
      'twice-3',
      { metadata: { uid: await uidOf('twice-3') }, spec: { cancel: true } },
    ]);
  });
});
