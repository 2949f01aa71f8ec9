import * as fs from 'node:fs';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import {
  CodedError,
  ManualClock,
  parseGoTime,
  SECOND_NS,
  silentLogger,
} from '../../../src/base/index.ts';
import { Zone } from '../../../src/cron/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUPS,
  connectToCluster,
  EVENTS,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  validLabel,
} from '../../../src/kube/index.ts';
import {
  ScheduleController,
  type ScheduleControllerOptions,
  SharedBackups,
} from '../../../src/server/index.ts';
import { SCHEDULE_RESOURCE, type ScheduleStatus } from '../../../src/server/schedules/schedule.ts';
import { LOOK_MS } from '../../../src/server/schedules/schedule-controller.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { callsThrough, withCalls } from '../../support/with-calls.ts';

const VELERO = 'velero';
const START = parseGoTime('2026-11-21T01:00:00Z');
const DAY = 86_400n;
const scratch = tempDirectory('schedules');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

describe('schedules', () => {
  let server: ApiServer;
  let client: KubeClient;
  let clock: ManualClock;
  let stop: (() => Promise<void>)[];
  let registry: Registry;
  /** Set by tests: throws if the server does not lead. */
  let assertLeading: () => void;

  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    clock = new ManualClock(START);
    server = await ApiServer.start({ clock });
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    await client.create(NAMESPACES, { metadata: { name: VELERO } });
    stop = [];
    assertLeading = () => undefined;
  });
  afterEach(async () => {
    for (const each of stop) await each();
    client.close();
    await server[Symbol.asyncDispose]();
    vi.useRealTimers();
  });

  /** A leading server. Returns a function that ends it. */
  function lead(
    options: Partial<
      Pick<ScheduleControllerOptions, 'client' | 'skipsImmediately' | 'series'>
    > = {},
  ): () => Promise<void> {
    const abort = new AbortController();
    registry = new Registry();
    const common = { client: options.client ?? client, logger: silentLogger, namespace: VELERO };
    const controller = new ScheduleController({
      ...common,
      host: 'h',
      registry,
      clock,
      zone: Zone.utc,
      backups: new SharedBackups(common),
      skipsImmediately: options.skipsImmediately ?? false,
      ...(options.series && { series: options.series }),
    });
    const running = controller.run(abort.signal, () => {
      assertLeading();
    });
    const end = async (): Promise<void> => {
      abort.abort();
      await running.catch(() => undefined);
    };
    stop.push(end);
    return end;
  }

  const add = (name: string, spec: object = {}, metadata: object = {}): Promise<KubeObject> =>
    client.create(SCHEDULE_RESOURCE, {
      metadata: { namespace: VELERO, name, ...metadata },
      spec: { schedule: '0 2 * * *', template: {}, ...spec },
    });
  const statusOf = async (name: string): Promise<ScheduleStatus> =>
    (await client.get(SCHEDULE_RESOURCE, { namespace: VELERO, name })).status ?? {};
  const backups = async (): Promise<string[]> =>
    (await client.list(BACKUPS, { namespace: VELERO })).map(({ metadata }) => metadata.name).sort();
  /** Passes time, and runs due schedules. */
  const pass = (seconds: bigint): void => {
    clock.advance(seconds * SECOND_NS);
    vi.advanceTimersByTime(LOOK_MS);
  };
  const eventually = (what: () => unknown) => expect.poll(what, { timeout: 10_000, interval: 5 });
  /** Waits until all earlier events were handled: a later schedule has been validated. */
  const settle = async (): Promise<void> => {
    const name = `barrier-${Math.random().toString(36).slice(2)}`;
    await add(name, { schedule: '@manual' });
    await eventually(async () => (await statusOf(name)).phase).toBe('Enabled');
  };
  const finish = (name: string, phase: string): Promise<unknown> =>
    client.patch(BACKUPS, { namespace: VELERO, name }, { status: { phase } });

  it('make a backup at each of their times, and say when', async () => {
    lead();
    await add('nightly');
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    pass(3599n);
    await settle();
    expect(await backups()).toEqual([]);
    pass(2n);
    await eventually(backups).toEqual(['nightly-20261121020000']);
    await eventually(async () => (await statusOf('nightly')).lastBackup).toBe(
      '2026-11-21T02:00:01Z',
    );
    await finish('nightly-20261121020000', 'Completed');
    pass(DAY);
    await eventually(backups).toEqual(['nightly-20261121020000', 'nightly-20261122020000']);
    await settle();
    const metrics = await registry.metrics();
    expect(metrics).toContain(
      'velero_schedule_expected_interval_seconds{schedule="nightly"} 86400',
    );
  });

  it('make one backup after days without a server, whatever was missed', async () => {
    await add('often', { schedule: '*/5 * * * *' });
    pass(9n * DAY + 62n);
    lead();
    await eventually(backups).toEqual(['often-20261130010000']);
    await settle();
    await finish('often-20261130010000', 'Completed');
    await settle();
    expect(await backups()).toEqual(['often-20261130010000']);
  });

  it('make none where one of a time is there already, as after a kill before it was noted', async () => {
    await add('nightly');
    const end = lead();
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    // The server dies right after the Backup was created.
    let times = 0;
    assertLeading = () => {
      if (++times > 1) throw new CodedError('LEADERSHIP_LOST', 'another one leads');
    };
    pass(3601n);
    await eventually(backups).toHaveLength(1);
    await eventually(() => times).toBeGreaterThan(1);
    await end();
    expect((await statusOf('nightly')).lastBackup ?? undefined).toBeUndefined();
    assertLeading = () => undefined;
    await finish('nightly-20261121020000', 'Completed');
    pass(60n);
    lead();
    await eventually(async () => (await statusOf('nightly')).lastBackup).toBe(
      '2026-11-21T02:00:01Z',
    );
    expect(await backups()).toEqual(['nightly-20261121020000']);
  });

  it('do not take a synced Backup with a copied label for their own, and make one of another name', async () => {
    const { metadata } = await add('nightly');
    await client.create(BACKUPS, {
      metadata: {
        namespace: VELERO,
        name: 'nightly-20261121020000',
        labels: {
          'velero.io/schedule-name': 'nightly',
          'longshore.io/schedule-uid': metadata.uid,
        },
        annotations: { 'longshore.io/synced-uid': 'forged' },
      },
      spec: {},
      status: { phase: 'Completed' },
    });
    lead();
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    pass(3601n);
    await eventually(backups).toEqual(['nightly-20261121020000', 'nightly-20261121020001']);
    await eventually(async () => (await statusOf('nightly')).lastBackup).toBe(
      '2026-11-21T02:00:01Z',
    );
  });

  it('write nothing once this process does not lead', async () => {
    assertLeading = () => {
      throw new CodedError('LEADERSHIP_LOST', 'another one leads');
    };
    await add('nightly');
    clock.advance(2n * DAY * SECOND_NS);
    const end = lead();
    vi.advanceTimersByTime(LOOK_MS);
    await end();
    expect(await backups()).toEqual([]);
    expect((await statusOf('nightly')).phase ?? '').toBe('');
  });

  it.each(['', 'New', 'Queued', 'ReadyToStart', 'InProgress'])(
    'wait for the backup before it while that is in phase "%s", and make one after it',
    async (phase) => {
      lead();
      await add('often', { schedule: '*/5 * * * *' });
      await eventually(async () => (await statusOf('often')).phase).toBe('Enabled');
      pass(301n);
      const first = 'often-20261121010500';
      await eventually(backups).toEqual([first]);
      await eventually(async () => (await statusOf('often')).lastBackup).toBe(
        '2026-11-21T01:05:01Z',
      );
      if (phase !== '') await finish(first, phase);
      await settle();
      for (let at = 0; at < 3; at++) {
        pass(300n);
        await settle();
      }
      expect(await backups()).toEqual([first]);
      await finish(first, 'Completed');
      await eventually(backups).toEqual([first, 'often-20261121012000']);
    },
  );

  it('wait for a backup that an earlier server has made', async () => {
    await add('often', { schedule: '*/5 * * * *' });
    await client.create(BACKUPS, {
      metadata: {
        namespace: VELERO,
        name: 'by-hand',
        labels: { 'velero.io/schedule-name': 'often' },
      },
      spec: {},
      status: { phase: 'InProgress' },
    });
    pass(601n);
    lead();
    await eventually(async () => (await statusOf('often')).phase).toBe('Enabled');
    await settle();
    expect(await backups()).toEqual(['by-hand']);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'by-hand' });
    await eventually(backups).toEqual(['often-20261121011000']);
  });

  it('go on when the clock of this very server was years ahead for a while', async () => {
    lead();
    await add('nightly');
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    pass(3650n * DAY);
    await eventually(backups).toEqual(['nightly-20361117020000']);
    await eventually(async () => (await statusOf('nightly')).lastBackup).toBeDefined();
    await finish('nightly-20361117020000', 'Completed');
    await settle();
    pass(-3650n * DAY);
    await settle();
    pass(3601n);
    await eventually(backups).toEqual(['nightly-20261121020000', 'nightly-20361117020000']);
  });

  it('make another one while the one before it is after its run', async () => {
    lead();
    await add('often', { schedule: '*/5 * * * *' });
    await eventually(async () => (await statusOf('often')).phase).toBe('Enabled');
    pass(301n);
    await eventually(backups).toHaveLength(1);
    await finish('often-20261121010500', 'WaitingForPluginOperations');
    pass(300n);
    await eventually(backups).toHaveLength(2);
  });

  it('make none while they are paused, and one when they go on', async () => {
    lead();
    await add('nightly', { paused: true });
    pass(3n * DAY);
    await settle();
    expect(await backups()).toEqual([]);
    expect((await statusOf('nightly')).phase ?? '').toBe('');
    const ref = { namespace: VELERO, name: 'nightly' };
    await client.patch(SCHEDULE_RESOURCE, ref, { spec: { paused: false } });
    await eventually(backups).toEqual(['nightly-20261123020000']);
  });

  it('skip what was missed where they are told to, once', async () => {
    lead();
    await add('nightly', { paused: true });
    pass(3n * DAY);
    await settle();
    const ref = { namespace: VELERO, name: 'nightly' };
    await client.patch(SCHEDULE_RESOURCE, ref, { spec: { paused: false, skipImmediately: true } });
    await eventually(async () => (await statusOf('nightly')).lastSkipped).toBe(
      '2026-11-24T01:00:00Z',
    );
    const { spec } = await client.get(SCHEDULE_RESOURCE, ref);
    expect(spec?.skipImmediately).toBe(false);
    expect(await backups()).toEqual([]);
    pass(3601n);
    await eventually(backups).toEqual(['nightly-20261124020000']);
  });

  it('that do not say so themselves skip as the server is told, each of them', async () => {
    for (const name of ['a', 'b', 'c']) await add(name);
    await add('d', { skipImmediately: false });
    pass(2n * DAY);
    lead({ skipsImmediately: true });
    for (const name of ['a', 'b', 'c']) {
      await eventually(async () => (await statusOf(name)).lastSkipped).toBe('2026-11-23T01:00:00Z');
    }
    await eventually(backups).toEqual(['d-20261122020000']);
  });

  it('say what is wrong with them, until it is mended', async () => {
    lead();
    await add('bad', { schedule: '61 * * * *' });
    await eventually(() => statusOf('bad')).toMatchObject({
      phase: 'FailedValidation',
      validationErrors: ['invalid schedule: end of range (61) above maximum (59): "61"'],
    });
    pass(2n * DAY);
    await settle();
    expect(await backups()).toEqual([]);
    const ref = { namespace: VELERO, name: 'bad' };
    await client.patch(SCHEDULE_RESOURCE, ref, { spec: { schedule: '0 * * * *' } });
    await eventually(async () => (await statusOf('bad')).phase).toBe('Enabled');
    expect((await statusOf('bad')).validationErrors ?? []).toEqual([]);
    await eventually(backups).toEqual(['bad-20261123000000']);
  });

  it('make no backup twice when a clock is set back, and go on when it is set ahead', async () => {
    lead();
    await add('nightly');
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    pass(3601n);
    await eventually(backups).toHaveLength(1);
    await eventually(async () => (await statusOf('nightly')).lastBackup).toBeDefined();
    await finish('nightly-20261121020000', 'Completed');
    pass(-3000n);
    await settle();
    pass(3005n);
    await settle();
    expect(await backups()).toHaveLength(1);
    pass(30n * DAY);
    await eventually(backups).toEqual(['nightly-20261121020000', 'nightly-20261221020000']);
  });

  it('whose last backup lies years ahead, by a clock that was wrong, go on from now', async () => {
    await add('nightly');
    const ref = { namespace: VELERO, name: 'nightly' };
    await client.patch(SCHEDULE_RESOURCE, ref, { status: { lastBackup: '2036-01-01T00:00:00Z' } });
    lead();
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    pass(3601n);
    await eventually(backups).toEqual(['nightly-20261121020000']);
    await eventually(async () => (await statusOf('nightly')).lastBackup).toBe(
      '2026-11-21T02:00:01Z',
    );
    await finish('nightly-20261121020000', 'Completed');
    await settle();
    expect(await backups()).toHaveLength(1);
  });

  it.each([
    ['a person', {}],
    [
      'a Schedule of their name in another cluster, which a sync has brought,',
      { 'velero.io/schedule-name': 'nightly', 'longshore.io/schedule-uid': 'another' },
    ],
  ])('do not take a backup of %s for their own', async (_, labels) => {
    await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'nightly-20261121020000', labels },
      spec: {},
      status: { phase: 'Completed' },
    });
    await add('nightly');
    pass(3661n);
    lead();
    await eventually(backups).toEqual(['nightly-20261121020000', 'nightly-20261121020101']);
  });

  it('decide anew where somebody has changed them meanwhile', async () => {
    await add('nightly');
    pass(2n * DAY);
    let conflicts = 0;
    const racing = withCalls(client, {
      patch: async (...[resource, ref, patch, options]: Parameters<KubeClient['patch']>) => {
        if (conflicts++ === 0) {
          const nightly = { namespace: VELERO, name: 'nightly' };
          await client.patch(SCHEDULE_RESOURCE, nightly, { spec: { paused: true } });
        }
        return client.patch(resource, ref, patch, options);
      },
    });
    lead({ client: racing });
    await eventually(() => conflicts).toBe(1);
    await settle();
    expect(await backups()).toEqual([]);
    expect((await statusOf('nightly')).phase ?? '').toBe('');
  });

  it('tell why no backup can be made, and make it once that can be done', async () => {
    await add('nightly');
    pass(3601n);
    let isRefused = true;
    const refusing = callsThrough(client, (name, [resource], go) =>
      name === 'create' && resource === BACKUPS && isRefused
        ? Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'it is away', { retry: 'backoff' }))
        : go(),
    );
    lead({ client: refusing });
    await eventually(async () =>
      (await client.list(EVENTS, { namespace: VELERO })).map(
        (event) => (event as { reason?: string }).reason,
      ),
    ).toContain('NoScheduledBackup');
    isRefused = false;
    await eventually(backups).toEqual(['nightly-20261121020000']);
  });

  it('that are deleted make no more backups', async () => {
    lead();
    await add('nightly');
    await eventually(async () => (await statusOf('nightly')).phase).toBe('Enabled');
    await client.delete(SCHEDULE_RESOURCE, { namespace: VELERO, name: 'nightly' });
    await settle();
    pass(2n * DAY);
    await settle();
    expect(await backups()).toEqual([]);
    expect(await registry.metrics()).not.toContain('schedule="nightly"');
  });

  it('tells metrics first which there are, by the label that backups have', async () => {
    const long = 'n'.repeat(70);
    await add(long);
    const told: string[] = [];
    const tell = (verb: string) => (names: string | readonly string[]) => {
      told.push(`${verb} ${String(names)}`);
    };
    lead({ series: { exist: tell('exist'), begin: tell('begin'), end: tell('end') } });
    const label = validLabel(long);
    await eventually(() => told.slice(0, 2)).toEqual([`exist ${label}`, `begin ${label}`]);
    await eventually(() => registry.metrics()).toContain(`schedule="${label}"`);
    await client.delete(SCHEDULE_RESOURCE, { namespace: VELERO, name: long });
    await eventually(() => told.at(-1)).toBe(`end ${label}`);
  });
});
