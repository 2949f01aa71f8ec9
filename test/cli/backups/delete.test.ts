import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import {
  BACKUPS,
  DELETE_BACKUP_REQUESTS,
  KubeClient,
  type KubeObject,
  RESTORES,
  SCHEDULES,
} from '../../../src/kube/index.ts';
import { sharedPackage } from '../../support/package.ts';
import { hasTerminal, Terminal } from '../../support/terminal.ts';
import { Api } from './support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('delete');
});
afterAll(() => api[Symbol.asyncDispose]());

const requestsFor = async (name: string): Promise<KubeObject[]> => {
  const all = await api.client.list(DELETE_BACKUP_REQUESTS);
  return all.filter(
    (request) => (request as { spec?: { backupName?: string } }).spec?.backupName === name,
  );
};
async function requestFor(name: string): Promise<KubeObject> {
  for (;;) {
    const [request] = await requestsFor(name);
    if (request) return request;
    await sleep(5);
  }
}

describe('longshore backup delete', () => {
  it('asks where somebody can be asked, and otherwise wants --confirm', async () => {
    await api.add(BACKUPS, 'kept', {});
    const { code, err } = await api.longshore('backup', 'delete', 'kept');
    expect(err).toContain('give --confirm where nobody can be asked');
    expect(code).toBe(2);
    expect(await requestsFor('kept')).toEqual([]);
  });

  it('makes requests as the server wants them, and goes on after a name that is not there', async () => {
    for (const name of ['one', 'two']) await api.add(BACKUPS, name, { labels: { env: 'test' } });
    const { code, out, err } = await api.longshore('backup', 'delete', 'x', 'one', '--confirm');
    expect(out).toContain('backup one is to be deleted');
    expect(err).toContain('there is no Backup velero/x');
    expect(code).toBe(1);
    const { uid } = (await api.client.get(BACKUPS, { namespace: 'velero', name: 'one' })).metadata;
    const [request] = await requestsFor('one');
    expect(request?.metadata.labels).toEqual({
      'velero.io/backup-name': 'one',
      'velero.io/backup-uid': uid,
      'velero.io/exclude-from-backup': 'true',
    });
    await api.longshore('backup', 'delete', '-l', 'env=test', '--confirm');
    expect(await requestsFor('two')).toHaveLength(1);
    expect(await requestsFor('kept')).toEqual([]);
  });

  it('with --wait returns when the backup is gone, whatever has its name by then', async () => {
    const backup = await api.add(BACKUPS, 'soon', {});
    const running = api.longshore('backup', 'delete', 'soon', '--confirm', '--wait');
    const request = await requestFor('soon');
    await api.client.delete(BACKUPS, backup.metadata);
    await api.add(BACKUPS, 'soon', {});
    await api.client.delete(DELETE_BACKUP_REQUESTS, request.metadata);
    expect(await running).toMatchObject({
      code: 0,
      out: expect.stringMatching(/backup soon is deleted\n$/) as string,
      err: '',
    });
  });

  it('with --wait prints why the server has not deleted it', async () => {
    await api.add(BACKUPS, 'stuck', {});
    const running = api.longshore('backup', 'delete', 'stuck', '--confirm', '--wait');
    const { metadata } = await requestFor('stuck');
    const errors = ['the location is read-only', 'x'];
    await api.set(DELETE_BACKUP_REQUESTS, metadata.name, { phase: 'Processed', errors });
    expect(await running).toMatchObject({
      code: 1,
      err: 'longshore: backup stuck is not deleted: the location is read-only; x\n',
    });
  });

  it('with --wait prints what the server waits for, once', async () => {
    await api.add(BACKUPS, 'slow', {});
    const running = api.longshore('backup', 'delete', 'slow', '--confirm', '--wait');
    // This spy catches the output.
    const printed = vi.spyOn(process.stderr, 'write');
    const { metadata } = await requestFor('slow');
    const errors = ['the backup is in phase Finalizing'];
    await api.set(DELETE_BACKUP_REQUESTS, metadata.name, { phase: 'InProgress', errors });
    const told = 'longshore: backup slow is not deleted yet: the backup is in phase Finalizing\n';
    await expect.poll(() => printed.mock.calls.flat().join(''), { timeout: 10_000 }).toBe(told);
    await api.client.delete(BACKUPS, { namespace: 'velero', name: 'slow' });
    expect(await running).toMatchObject({ code: 0, err: told });
  });

  it('of nothing says so', async () => {
    const { code, err } = await api.longshore('backup', 'delete', '-l', 'no=ne', '--confirm');
    expect(err).toBe('there is no backup to delete in namespace velero\n');
    expect(code).toBe(0);
  });

  it.runIf(hasTerminal())(
    'on a terminal deletes after a yes, and nothing after anything else',
    async () => {
      await api.add(BACKUPS, 'asked', {});
      const command = [
        ...[join(sharedPackage(), 'bin/longshore'), 'backup', 'delete', 'asked'],
        ...['--kubeconfig', api.kubeconfig],
      ];
      for (const [said, isDeleted, code] of [
        ['\r', false, 1],
        ['\u0004', false, 130],
        ['\u0003', false, 130],
        ['y\r', true, 0],
      ] as const) {
        using terminal = new Terminal(command, process.env);
        await terminal.see('Delete 1 backup (asked)');
        await terminal.see('[y/N]');
        terminal.type(said);
        await terminal.see(isDeleted ? 'backup asked is to be deleted' : 'nothing was deleted');
        expect(await terminal.exit()).toBe(code);
        expect(await requestsFor('asked')).toHaveLength(isDeleted ? 1 : 0);
      }
    },
    120_000,
  );
});

it('restores and schedules are deleted themselves', async () => {
  await api.add(RESTORES, 'back', {});
  await api.add(SCHEDULES, 'nightly', { spec: { schedule: '@daily', template: {} } });
  const restore = await api.longshore('restore', 'delete', 'back', '--confirm');
  expect(restore).toMatchObject({ code: 0, out: 'restore back is to be deleted\n' });
  const schedule = await api.longshore('schedule', 'delete', '--all', '--confirm');
  expect(schedule).toMatchObject({ code: 0, out: 'schedule nightly is deleted\n' });
  expect(await api.client.list(RESTORES)).toEqual([]);
  expect(await api.client.list(SCHEDULES)).toEqual([]);
});

describe('backups stay when their schedule is deleted', () => {
  afterEach(() => {
    vi.restoreAllMocks();
  });
  const addSchedule = (name: string, isOwner = true) => {
    const spec = { schedule: '@daily', template: {}, useOwnerReferencesInBackup: isOwner };
    return api.add(SCHEDULES, name, { spec });
  };
  const addBackup = async ({ apiVersion = '', kind = '', metadata }: KubeObject) => {
    const { name, uid } = metadata;
    const ref = { namespace: 'velero', name: `${name}-20261128000000` };
    const labels = { 'velero.io/schedule-name': name };
    const ownerReferences = [{ apiVersion, kind, name, uid, controller: true }];
    await api.client.create(BACKUPS, { metadata: { ...ref, labels, ownerReferences } });
    return ref;
  };
  const deleteSchedule = async (name: string): Promise<void> => {
    const { code, out } = await api.longshore('schedule', 'delete', name, '--confirm');
    expect([code, out]).toEqual([0, `schedule ${name} is deleted\n`]);
  };
  const expectKept = async (ref: { namespace: string; name: string }): Promise<void> => {
    const backup = await api.client.get(BACKUPS, ref);
    expect(backup.metadata.ownerReferences).toBeUndefined();
  };

  it('also those that belong to it, and did when it made such ones', async () => {
    for (const isOwner of [true, false]) {
      const name = `owner-${isOwner}`;
      const backup = await addBackup(await addSchedule(name, isOwner));
      await deleteSchedule(name);
      await expectKept(backup);
    }
  });

  it('also one that the server makes right then', async () => {
    const schedule = await addSchedule('busy');
    const remove = vi.spyOn(KubeClient.prototype, 'delete');
    let backup = { namespace: '', name: '' };
    remove.mockImplementationOnce(async (...request) => {
      backup = await addBackup(schedule);
      return api.client.delete(...request);
    });
    await deleteSchedule('busy');
    await expectKept(backup);
  });

  it('also where whoever deletes it may not see them', async () => {
    const backup = await addBackup(await addSchedule('unseen', false));
    vi.spyOn(KubeClient.prototype, 'collect').mockRejectedValue(
      new CodedError('KUBE_FORBIDDEN', 'no'),
    );
    await deleteSchedule('unseen');
    await expectKept(backup);
  });
});
