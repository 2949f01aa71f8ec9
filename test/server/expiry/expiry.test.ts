import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Clock, rfc3339Seconds, silentLogger, systemClock } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  connectToCluster,
  DELETE_BACKUP_REQUESTS,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
} from '../../../src/kube/index.ts';
import { kubeError } from '../../../src/kube/client/errors.ts';
import { ExpiryController, type ExpiryControllerOptions } from '../../../src/server/index.ts';
import { FAILURE_LABEL } from '../../../src/server/expiry/failure-label.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { recordingLogger } from '../../support/repositories.ts';
import { callsThrough, withCalls } from '../../support/with-calls.ts';

const VELERO = 'velero';
const HOUR_NS = 3_600_000_000_000n;
const scratch = tempDirectory('expiry');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

/** This machine's clock with an offset. */
const off = (hours: bigint): Clock => ({ nowNs: () => systemClock.nowNs() + hours * HOUR_NS });
const timeIn = (hours: bigint): string => rfc3339Seconds(systemClock.nowNs() + hours * HOUR_NS);

describe('backups whose time is over', () => {
  let server: ApiServer;
  let client: KubeClient;

  beforeEach(async () => {
    server = await ApiServer.start();
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    await client.create(NAMESPACES, { metadata: { name: VELERO } });
    await location('default');
  });
  afterEach(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  const location = (name: string, phase = 'Available', spec: object = {}): Promise<unknown> =>
    client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { namespace: VELERO, name },
      spec: { provider: 'x', ...spec },
      status: { phase },
    } as never);

  const backup = (
    name: string,
    { hours = -1n, phase = 'Completed', at = 'default', labels = {}, annotations = {} } = {},
  ): Promise<KubeObject> =>
    client.create(BACKUPS, {
      metadata: { namespace: VELERO, name, labels, annotations },
      spec: { storageLocation: at },
      status: { phase, expiration: timeIn(hours) },
    });

  const look = (options: Partial<ExpiryControllerOptions> = {}): Promise<boolean> =>
    new ExpiryController({
      client,
      logger: silentLogger,
      namespace: VELERO,
      frequencyMs: 1000,
      ...options,
    }).look(new AbortController().signal, () => undefined);

  const requested = async (): Promise<string[]> =>
    (await client.list(DELETE_BACKUP_REQUESTS, { namespace: VELERO }))
      .map((request) => (request as { spec?: { backupName?: string } }).spec?.backupName ?? '')
      .sort();

  const noted = async (): Promise<Readonly<Record<string, string>> | undefined> =>
    (await client.find(CONFIG_MAPS, { namespace: VELERO, name: 'longshore-expiry' }))?.data;

  const label = async (name: string): Promise<string | undefined> =>
    (await client.get(BACKUPS, { namespace: VELERO, name })).metadata.labels?.[FAILURE_LABEL];

  it('are asked to be deleted, once; those that are still made, or have no time, are not', async () => {
    const { metadata } = await backup('old');
    await backup('new', { hours: 1n });
    await backup('making', { phase: 'FinalizingPartiallyFailed' });
    await backup('failed', { phase: 'Failed' });
    await backup('deleting', { phase: 'Deleting' });
    await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'odd' },
      spec: {},
      status: { phase: 'Completed', expiration: 'soon' },
    });
    await look();
    await look();
    expect(await requested()).toEqual(['deleting', 'failed', 'old']);
    const all = await client.list(DELETE_BACKUP_REQUESTS, { namespace: VELERO });
    const own = all.find(({ metadata: { name } }) => name.startsWith('old-'));
    expect(own?.metadata.labels).toEqual({
      'velero.io/backup-name': 'old',
      'velero.io/backup-uid': metadata.uid,
      'velero.io/exclude-from-backup': 'true',
    });
  });

  it('are not deleted if they had expired before the sync found them in the bucket', async () => {
    const expiration = timeIn(-1n);
    await backup('forged', { annotations: { 'longshore.io/expired-at-sync': expiration } });
    // A cluster that was off has no notes, and knows its own backups.
    await backup('own');
    await look();
    expect(await requested()).toEqual(['own']);
    // A person sets another expiration, for example to delete the backup at once.
    const status = { expiration: timeIn(-2n) };
    await client.patch(BACKUPS, { namespace: VELERO, name: 'forged' }, { status });
    await look();
    expect(await requested()).toEqual(['forged', 'own']);
  });

  it('are deleted at their time if a wrong clock had called them expired', async () => {
    const expiration = timeIn(1n);
    const annotations = { 'longshore.io/expired-at-sync': expiration };
    await backup('young', { hours: 1n, annotations });
    await look();
    const { metadata } = await client.get(BACKUPS, { namespace: VELERO, name: 'young' });
    expect(metadata.annotations ?? {}).toEqual({});
    expect(await requested()).toEqual([]);
  });

  it('are asked for again where the last request has failed', async () => {
    const { metadata } = await backup('old');
    await client.create(DELETE_BACKUP_REQUESTS, {
      metadata: {
        namespace: VELERO,
        name: 'before',
        labels: { 'velero.io/backup-uid': metadata.uid },
      },
      spec: { backupName: 'old' },
      status: { phase: 'Processed', errors: ['no'] },
    });
    await look();
    expect(await requested()).toEqual(['old', 'old']);
  });

  it('say why they stay, and no longer when that is over', async () => {
    await location('ro', 'Available', { accessMode: 'ReadOnly' });
    await location('off', 'Unavailable');
    await backup('b-ro', { at: 'ro' });
    await backup('b-off', { at: 'off' });
    await backup('b-none', { at: 'none' });
    await backup('b-was', { labels: { [FAILURE_LABEL]: 'BSLReadOnly' } });
    await backup('b-cannot', { at: 'hidden' });
    const hiding = withCalls(client, {
      find: (...[resource, ref, options]: Parameters<KubeClient['find']>) =>
        ref.name === 'hidden'
          ? Promise.reject(kubeError('get', 403, undefined))
          : client.find(resource, ref, options),
    });
    await look({ client: hiding });
    expect(await requested()).toEqual(['b-was']);
    const names = ['b-ro', 'b-off', 'b-none', 'b-was', 'b-cannot'];
    expect(await Promise.all(names.map(label))).toEqual([
      ...['BSLReadOnly', 'BSLUnavailable', 'BSLNotFound', undefined, 'BSLCannotGet'],
    ]);
    await client.patch(
      BACKUP_STORAGE_LOCATIONS,
      { namespace: VELERO, name: 'ro' },
      {
        spec: { accessMode: 'ReadWrite' },
      },
    );
    await look();
    expect([await label('b-ro'), await requested()]).toEqual([undefined, ['b-ro', 'b-was']]);
  });

  it('are asked for whatever their location says where they never began', async () => {
    await backup('b-none', { at: 'none', phase: 'FailedValidation' });
    await backup('b-was', {
      at: 'none',
      phase: 'FailedValidation',
      labels: { [FAILURE_LABEL]: 'BSLNotFound' },
    });
    await look();
    expect(await requested()).toEqual(['b-none', 'b-was']);
    expect([await label('b-none'), await label('b-was')]).toEqual([undefined, undefined]);
  });

  it.each([
    ['this machine is ahead', off(1000n), off(0n)],
    ['the API server is ahead', off(0n), off(1000n)],
  ])('are not taken for such by a clock that jumps: %s', async (_, clock, theirs) => {
    await backup('b', { hours: 500n });
    const odd = withCalls(client, { clock: theirs });
    await look({ client: odd, clock });
    expect(await requested()).toEqual([]);
    expect((await noted())?.['held-until']).toBeUndefined();
  });

  it('wait for a day where both clocks jump, and are still there when these are set right', async () => {
    await backup('old');
    await look();
    await backup('young', { hours: 500n });
    const at = (hours: bigint): Promise<boolean> =>
      look({ clock: off(hours), client: withCalls(client, { clock: off(hours) }) });
    await at(8760n);
    // A new process with a clock that is a little behind does not start over.
    await look({ clock: off(8783n), client: withCalls(client, { clock: off(8783n) }) });
    await at(8782n);
    expect(await requested()).toEqual(['old']);
    await at(0n);
    expect((await noted())?.['held-until']).toBeUndefined();
    await backup('next');
    await at(1n);
    expect(await requested()).toEqual(['next', 'old']);
  });

  it('are deleted a day after an outage of days, whoever looks then', async () => {
    await look();
    const logger = recordingLogger();
    await backup('old', { hours: 20n });
    const at = (hours: bigint): Promise<boolean> =>
      look({ clock: off(hours), client: withCalls(client, { clock: off(hours) }), logger });
    await at(72n);
    await at(95n);
    expect([await requested(), logger.messages.length]).toEqual([[], 2]);
    expect(logger.messages[0]).toMatch(/more than a day had passed between two looks/);
    await at(97n);
    expect(await requested()).toEqual(['old']);
  });

  it('wait no longer where the note of the last look is taken away, or is not one', async () => {
    await look();
    await backup('b', { hours: 20n });
    const late = off(72n);
    const far = withCalls(client, { clock: late });
    await look({ clock: late, client: far });
    await client.delete(CONFIG_MAPS, { namespace: VELERO, name: 'longshore-expiry' });
    await look({ clock: late, client: far });
    expect(await requested()).toEqual(['b']);
    const data = { 'looked-at': 'soon', 'held-until': 'later' };
    const ref = { namespace: VELERO, name: 'longshore-expiry' };
    await client.patch(CONFIG_MAPS, ref, { data });
    await backup('c');
    await look();
    expect(await requested()).toEqual(['b', 'c']);
  });

  it('are asked for where the last look may not be noted, which the log says; not where that only fails now', async () => {
    await backup('b');
    const failing = (status: number) =>
      withCalls(client, {
        find: (...[resource, ref, options]: Parameters<KubeClient['find']>) =>
          resource.plural === 'configmaps'
            ? Promise.reject(kubeError('get', status, undefined))
            : client.find(resource, ref, options),
      });
    await expect(look({ client: failing(503) })).rejects.toMatchObject({
      code: 'KUBE_UNAVAILABLE',
    });
    expect(await requested()).toEqual([]);
    const logger = recordingLogger();
    await look({ client: failing(403), logger });
    expect(await requested()).toEqual(['b']);
    expect(logger.messages[0]).toMatch(
      /let the ServiceAccount of this server get, create and patch/,
    );
  });

  it('are many, and are asked for some at a time', async () => {
    for (let i = 0; i < 620; i++) await backup(`b${i}`);
    expect(await look()).toBe(true);
    expect(await requested()).toHaveLength(500);
    expect(await look()).toBe(false);
    expect(new Set(await requested()).size).toBe(620);
  }, 60_000);

  it('are asked for where one of them cannot be', async () => {
    for (const name of ['a', 'bad', 'c', 'd', 'e', 'f']) await backup(name);
    const denying = (denied: (name: string) => boolean) =>
      withCalls(client, {
        create: (...[resource, object]: Parameters<KubeClient['create']>) =>
          denied((object as { spec?: { backupName: string } }).spec?.backupName ?? '')
            ? Promise.reject(kubeError('create', 403, undefined))
            : client.create(resource, object),
      });
    await expect(look({ client: denying((name) => name !== '') })).rejects.toMatchObject({
      code: 'KUBE_FORBIDDEN',
    });
    await look({ client: denying((name) => name === 'bad') });
    expect(await requested()).toEqual(['a', 'c', 'd', 'e', 'f']);
  });

  it('are not asked for again with each look at the rest, where their deletion fails at once', async () => {
    for (let i = 0; i < 501; i++) await backup(`b${i}`);
    const abort = new AbortController();
    const controller = new ExpiryController({
      client,
      logger: silentLogger,
      namespace: VELERO,
      frequencyMs: 3_600_000,
    });
    const again = () => controller.look(abort.signal, () => undefined);
    expect(await again()).toBe(true);
    for (const { metadata } of await client.list(DELETE_BACKUP_REQUESTS, { namespace: VELERO })) {
      await client.delete(DELETE_BACKUP_REQUESTS, metadata);
    }
    expect(await again()).toBe(false);
    expect(await requested()).toHaveLength(1);
  }, 60_000);

  it('are looked for at once, and again after each period; an API server that is away is asked again soon', async () => {
    let failures = 2;
    const failing = callsThrough(client, (name, _, go) => {
      if (name !== 'collect' || failures <= 0) return go();
      failures--;
      return Promise.reject(kubeError('list', 503, undefined));
    });
    await backup('first');
    const controller = new ExpiryController({
      client: failing,
      logger: silentLogger,
      namespace: VELERO,
      frequencyMs: 200,
      retryMs: 10,
    });
    const abort = new AbortController();
    const running = controller.run(abort.signal, () => undefined);
    await expect.poll(requested).toEqual(['first']);
    expect(controller.failure).toBeUndefined();
    await backup('second');
    await expect.poll(requested).toEqual(['first', 'second']);
    abort.abort();
    await running;
  });
});
