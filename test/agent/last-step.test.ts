import { describe, expect, it, vi } from 'vitest';
import { MovementEnd } from '../../src/agent/reconcile/movement-end.ts';
import { CodedError } from '../../src/base/index.ts';
import type { DataDownload } from '../../src/kube/index.ts';
import { aDownload } from '../support/builders.ts';

const DAY_MS = 86_400_000;
const movement = aDownload({
  metadata: { name: 'down', uid: 'u-1' },
  spec: {},
  status: { phase: 'InProgress', node: 'me' },
});

const over = { ...movement, status: { ...movement.status, phase: 'Canceled' } } as DataDownload;
const other = { ...movement, metadata: { ...movement.metadata, uid: 'u-2' } };

describe('the last step of a restore that took too long', () => {
  const play = async (facts: {
    heardMs: number;
    lateMs?: number;
    isRefusing?: boolean;
    current?: DataDownload;
  }): Promise<unknown[]> => {
    let { heardMs } = facts;
    const told: unknown[] = [];
    const ending = new MovementEnd<DataDownload>({
      direction: {
        name: 'download',
        complete: () => Promise.reject(new CodedError('WAIT_TIMEOUT', 'not bound')),
      },
      writer: {
        latest: () => Promise.resolve(movement),
        current: () => facts.current ?? movement,
        isRefusing: facts.isRefusing ?? false,
        touch: (touched: DataDownload) => {
          if (touched !== movement) told.push('touched another');
          heardMs = 0;
          return Promise.resolve(movement);
        },
      },
      turns: { sinceMs: () => facts.lateMs ?? 0 },
      prepareTimeoutMs: 1_800_000,
      heardMs: () => heardMs,
    } as never);
    vi.spyOn(ending, 'fail').mockImplementation((_movement, message) => {
      told.push(`failed: ${message}`);
      return Promise.resolve();
    });
    await ending.complete(movement, {}, new AbortController().signal).catch((error: unknown) => {
      told.push(error);
    });
    return told;
  };

  const again = [expect.objectContaining({ code: 'WAIT_TIMEOUT' })];
  const failed = ['failed: not bound'];
  it.each([
    [failed, 'fails', { heardMs: Infinity }],
    [again, 'is tried again soon after the API server took no writes', { heardMs: 299_000 }],
    [again, 'is tried again after the first write', { heardMs: 600_000, isRefusing: true }],
    [failed, 'fails within a day', { heardMs: 0, lateMs: DAY_MS }],
    [failed, 'touches none that is over', { heardMs: 0, isRefusing: true, current: over }],
    [failed, 'touches none that is new', { heardMs: 0, isRefusing: true, current: other }],
  ])('%j %s', async (expected, _what, facts) => {
    expect(await play(facts)).toEqual(expected);
  });
});
