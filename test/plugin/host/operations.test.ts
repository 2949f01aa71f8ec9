import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import { Operations } from '../../../src/plugin/host/operations.ts';
import type { PluginProcess } from '../../../src/plugin/host/plugin-process.ts';
import type { RestartableProcess } from '../../../src/plugin/host/restartable-process.ts';

const HOUR_MS = 3_600_000;
const PLUGIN = { kind: 'BackupItemActionV2', name: 'a.io/move' } as const;

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

it('keeps a process for an operation of days, as long as somebody asks about it', () => {
  let stops = 0;
  const process = { isGone: false, ended: new Promise(() => undefined) };
  const owner = {
    command: '/plugins/move',
    logger: silentLogger,
    stop: () => {
      stops++;
      return Promise.resolve();
    },
  };
  const operations = new Operations(silentLogger);
  const began = process as unknown as PluginProcess;
  operations.begun(PLUGIN, 'op-1', owner as unknown as RestartableProcess, began);
  expect(operations.keep(owner as unknown as RestartableProcess)).toBe(true);
  for (let day = 0; day < 3; day++) {
    vi.advanceTimersByTime(23 * HOUR_MS);
    expect([day, operations.processOf(PLUGIN, 'op-1'), stops]).toEqual([day, began, 0]);
  }
  vi.advanceTimersByTime(25 * HOUR_MS);
  expect([operations.processOf(PLUGIN, 'op-1'), stops]).toEqual([undefined, 1]);
});
