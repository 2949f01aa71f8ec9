import { expect, it } from 'vitest';
import { SyncMemory } from '../../../src/server/sync/sync-memory.ts';

const HOUR_MS = 3_600_000;
const YEAR_MS = 8766 * HOUR_MS;
const NOW_MS = Date.UTC(2026, 10, 28);

it('what cannot be taken is not read again for an hour, whatever the clock was when it was refused', () => {
  const memory = new SyncMemory();
  memory.refuse('b', NOW_MS);
  expect(memory.isRefused('b', NOW_MS)).toBe(true);
  expect(memory.isRefused('b', NOW_MS + HOUR_MS - 1)).toBe(true);
  expect(memory.isRefused('b', NOW_MS + HOUR_MS)).toBe(false);
  expect(memory.isRefused('other', NOW_MS)).toBe(false);
  memory.refuse('b', NOW_MS + YEAR_MS);
  expect(memory.isRefused('b', NOW_MS)).toBe(false);
});

it('what is missing is so since it was first looked for, or since a clock that was ahead was set right', () => {
  const memory = new SyncMemory();
  memory.miss(['a'], NOW_MS);
  expect(memory.miss(['a'], NOW_MS + 60_000).get('a')).toEqual({ sinceMs: NOW_MS, looks: 2 });
  memory.miss(['b'], NOW_MS + YEAR_MS);
  memory.miss(['b'], NOW_MS);
  expect(memory.miss(['b'], NOW_MS + 60_000).get('b')).toEqual({ sinceMs: NOW_MS, looks: 3 });
});
