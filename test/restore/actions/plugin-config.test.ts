import { afterEach, describe, expect, it, vi } from 'vitest';
import { codeOf } from '../../../src/base/index.ts';
import { PluginConfigs } from '../../../src/restore/index.ts';

const { signal } = new AbortController();

describe('what actions are told by ConfigMaps', () => {
  afterEach(() => vi.useRealTimers());

  it('is asked for once in five seconds for each action, and again where it could not be read', async () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    let asked = 0;
    let answer = (): object[] => [{ metadata: { name: 'c' }, data: { asked: String(asked) } }];
    const configs = new PluginConfigs(
      {
        list: () => {
          asked++;
          return Promise.resolve(answer() as never);
        },
      },
      'velero',
    );
    expect(await configs.of('velero.io/a', signal)).toEqual({ asked: '1' });
    expect(await configs.of('velero.io/a', signal)).toEqual({ asked: '1' });
    expect(await configs.of('velero.io/b', signal)).toEqual({ asked: '2' });
    vi.advanceTimersByTime(5001);
    answer = () => {
      throw new Error('away');
    };
    const failed = await configs.of('velero.io/a', signal).catch((error: unknown) => error);
    expect(failed).toMatchObject({ message: 'away' });
    const both = [{ metadata: { name: 'c' } }, { metadata: { name: 'd' } }];
    answer = () => both;
    const twice = await configs.of('velero.io/a', signal).catch((error: unknown) => codeOf(error));
    expect(twice).toBe('AMBIGUOUS_CONFIG');
    answer = () => [];
    expect(await configs.of('velero.io/a', signal)).toEqual({});
    expect(asked).toBe(5);
  });
});
