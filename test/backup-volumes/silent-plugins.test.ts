import { describe, expect, it } from 'vitest';
import { unlessSilent } from '../../src/backup-volumes/native-snapshots.ts';
import { CodedError, codeOf, messageOf } from '../../src/base/index.ts';
import type { VolumeSnapshotter } from '../../src/plugin/index.ts';

const context = { signal: new AbortController().signal };

function snapshotterOf() {
  const world = { answer: 'ok', asked: 0 };
  const call = (): Promise<string> => {
    world.asked++;
    if (world.answer === 'ok') return Promise.resolve('x');
    return Promise.reject(new CodedError(world.answer, 'no'));
  };
  const plain = { volumeIdOf: call, createSnapshot: call } as unknown as VolumeSnapshotter;
  const snapshotter = unlessSilent(plain, 'l');
  const take = async (answer: string): Promise<string> => {
    world.answer = answer;
    return snapshotter
      .createSnapshot('v', '', {}, context)
      .catch((error: unknown) => codeOf(error) ?? '');
  };
  const find = async (): Promise<string> => {
    world.answer = 'ok';
    return snapshotter
      .volumeIdOf({} as never, context)
      .catch((error: unknown) => `${codeOf(error) ?? ''}: ${messageOf(error)}`);
  };
  return { world, take, find };
}

describe('a plugin that does not answer', () => {
  it('is left alone after two calls of a kind, with all of its calls', async () => {
    const { take, find, world } = snapshotterOf();
    expect(await take('PLUGIN_TIMEOUT')).toBe('PLUGIN_TIMEOUT');
    // An answer to a different kind of call does not count.
    expect(await find()).toBe('x');
    expect(await take('PLUGIN_TIMEOUT')).toBe('PLUGIN_TIMEOUT');
    const { asked } = world;
    expect(await take('ok')).toBe('PLUGIN_SILENT');
    expect(await find()).toMatch(
      /^PLUGIN_SILENT: the plugin of VolumeSnapshotLocation l left CreateSnapshot without an answer 2 times in a row/,
    );
    expect(world.asked).toBe(asked);
  });
  it.each(['ok', 'PLUGIN_REFUSED'])(
    'is asked on after an answer in between: %s',
    async (answer) => {
      const { take } = snapshotterOf();
      for (let i = 0; i < 3; i++) {
        expect(await take('PLUGIN_TIMEOUT')).toBe('PLUGIN_TIMEOUT');
        expect(await take(answer)).toBe(answer === 'ok' ? 'x' : answer);
      }
    },
  );
});
