import { describe, expect, it } from 'vitest';
import { codeOf } from '../../../src/base/index.ts';
import { PluginConfigs } from '../../../src/restore/index.ts';

const { signal } = new AbortController();

/** ConfigMaps that are others each time. */
function configsOf(answer: (asked: number) => object[]) {
  let asked = 0;
  const list = async () => {
    await Promise.resolve();
    return answer(++asked) as never;
  };
  return { configs: new PluginConfigs({ list }, 'velero'), asked: () => asked };
}
const numbered = (asked: number): object[] => [
  { metadata: { name: 'c' }, data: { asked: String(asked) } },
];

describe('what actions are told by ConfigMaps', () => {
  it('is read once for each action, however long the restore takes and whoever edits it', async () => {
    const { configs, asked } = configsOf(numbered);
    expect(await configs.of('velero.io/a', signal)).toEqual({ asked: '1' });
    expect(await configs.of('velero.io/a', signal)).toEqual({ asked: '1' });
    expect(await configs.of('velero.io/b', signal)).toEqual({ asked: '2' });
    expect(asked()).toBe(2);
  });

  it('is the same for items that ask at once', async () => {
    const { configs } = configsOf(numbered);
    const all = await Promise.all([1, 2, 3].map(() => configs.of('velero.io/a', signal)));
    expect(new Set(all.map(({ asked }) => asked)).size).toBe(1);
  });

  it('is read again if it could not be read', async () => {
    let isAway = true;
    const both = [{ metadata: { name: 'c' } }, { metadata: { name: 'd' } }];
    let answer: object[] = both;
    const { configs, asked } = configsOf(() => {
      if (isAway) throw new Error('away');
      return answer;
    });
    await expect(configs.of('velero.io/a', signal)).rejects.toThrow('away');
    isAway = false;
    const twice = await configs.of('velero.io/a', signal).catch((error: unknown) => codeOf(error));
    expect(twice).toBe('AMBIGUOUS_CONFIG');
    answer = [];
    expect(await configs.of('velero.io/a', signal)).toEqual({});
    expect(asked()).toBe(3);
  });
});
