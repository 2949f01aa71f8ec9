import { describe, expect, it } from 'vitest';
import { type Logger, silentLogger, systemClock } from '../../../src/base/index.ts';
import type { Backup, KubeClient } from '../../../src/kube/index.ts';
import { BACKUP_RUNS } from '../../../src/server/backups/backup-kind.ts';
import { PhaseEvents } from '../../../src/server/runs/phase-events.ts';

const backupIn = (
  phase: string | undefined,
  { name = 'b1', errors = 0, uid = 'u1' } = {},
): Backup =>
  ({
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: { name, namespace: 'velero', uid, resourceVersion: '1' },
    spec: {},
    status: { phase, errors },
  }) as unknown as Backup;

function eventsOf(create?: () => Promise<void>) {
  const written: { reason: string; message: string; type: string }[] = [];
  const client = {
    create: async (_: unknown, event: (typeof written)[number]) => {
      await create?.();
      written.push(event);
    },
    patch: () => Promise.resolve(),
  } as unknown as KubeClient;
  const lines: Record<string, unknown>[] = [];
  const note =
    (level: string) =>
    (fields: object, text = ''): void => {
      lines.push({ level, text, ...fields });
    };
  const logger = { ...silentLogger, info: note('info'), warn: note('warn') } as unknown as Logger;
  const events = new PhaseEvents<Backup>({
    client,
    logger,
    host: 'h',
    clock: systemClock,
    kind: BACKUP_RUNS,
  });
  return { events, written, lines };
}

describe('Events of a Backup', () => {
  it('tell of each phase once, and of trouble as a warning', async () => {
    const { events, written } = eventsOf();
    const phases = [
      ...['New', 'Queued', 'ReadyToStart', 'InProgress', 'InProgress'],
      ...['WaitingForPluginOperationsPartiallyFailed', 'FinalizingPartiallyFailed'],
      'PartiallyFailed',
    ];
    let before = backupIn(undefined);
    for (const phase of phases) {
      const after = backupIn(phase, { errors: 2 });
      events.changed(after, before);
      before = after;
    }
    await events.flush();
    expect(written.map(({ reason }) => reason)).toEqual([...new Set(phases)]);
    expect(written.at(-1)).toMatchObject({
      type: 'Warning',
      message:
        'the backup has ended with 2 errors, which "longshore backup describe b1 --details" shows',
    });
    expect(written.slice(0, 4).map(({ type }) => type)).toEqual(Array(4).fill('Normal'));
  });

  it('are lines of the log as well, with what came of it and why', async () => {
    const { events, lines } = eventsOf();
    const running = backupIn('InProgress');
    events.changed(running, backupIn('ReadyToStart'));
    const ended = backupIn('Failed');
    Object.assign(ended.status as object, {
      failureReason: 'the disk is full',
      startTimestamp: '2026-11-27T08:00:00Z',
      completionTimestamp: '2026-11-27T08:01:30Z',
      progress: { totalItems: 7 },
      warnings: 1,
    });
    events.changed(ended, running);
    await events.flush();
    expect(lines).toEqual([
      { level: 'info', backup: 'b1', phase: 'InProgress', text: 'its items are being backed up' },
      {
        level: 'warn',
        backup: 'b1',
        phase: 'Failed',
        reason: 'the disk is full',
        items: 7,
        errors: 0,
        warnings: 1,
        seconds: 90,
        text: 'the backup has failed; "longshore backup describe b1" tells why',
      },
    ]);
  });

  it('tell nothing of one that is there from the start, is gone, or has another one before it', async () => {
    const { events, written } = eventsOf();
    events.changed(backupIn('Completed'), undefined);
    events.changed(undefined, backupIn('Completed'));
    events.changed(backupIn('InProgress', { uid: 'u2' }), backupIn('Completed'));
    events.changed(backupIn('SomethingNew'), backupIn('InProgress'));
    await events.flush();
    expect(written).toEqual([]);
  });

  it('are waited for by nobody, and are bounded where the API server hangs', async () => {
    let answer: (() => void) | undefined;
    const hanging = new Promise<void>((resolve) => (answer = resolve));
    const { events, written } = eventsOf(() => hanging);
    for (let i = 0; i < 1000; i++) {
      const about = { name: `b${i}`, uid: `u${i}` };
      events.changed(backupIn('Completed', about), backupIn('Finalizing', about));
    }
    answer?.();
    await events.flush();
    expect(written.length).toBeGreaterThan(200);
    expect(written.length).toBeLessThan(300);
  });
});
