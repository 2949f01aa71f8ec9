import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, it } from 'vitest';
import { RestoreArchive } from '../../../src/archive/index.ts';
import { Restored } from '../../../src/restore/run/restored-items.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;
const KIND = 'v1/ConfigMap';

it('lists what a restore has come to by kind, sorted, each with its outcome; what is under way has failed', async () => {
  const restored = new Restored();
  restored.done({ kind: 'v1/Pod', namespace: 'b', name: 'x', outcome: 'created', exists: true });
  restored.begin({ kind: KIND, namespace: 'b', name: 'z' });
  restored.done({ kind: KIND, namespace: 'b-2', name: 'a', outcome: 'skipped', exists: true });
  restored.done({ kind: KIND, namespace: 'b', name: 'y', outcome: 'updated', exists: true });
  const archive = new RestoreArchive(new MemoryBucket());
  await archive.put('r', { resourceList: restored.resourceList });
  expect(await archive.resourceList('r')).toEqual({
    [KIND]: ['b-2/a(skipped)', 'b/y(updated)', 'b/z(failed)'],
    'v1/Pod': ['b/x(created)'],
  });
});

it('makes no text of an item before its turn comes', () => {
  const restored = new Restored();
  const [namespaces, each] = [100, 2000];
  for (let n = 0; n < namespaces * each; n++) {
    const key = { kind: KIND, namespace: `space-${n % namespaces}`, name: `config-${n}` };
    restored.done({ ...key, outcome: 'created', exists: true });
  }
  collect();
  const before = process.memoryUsage().heapUsed;
  let [count, most] = [0, 0];
  for (const [, names] of restored.resourceList) {
    for (const name of names) {
      if (name.endsWith('(created)')) count++;
      if (count % each !== 1) continue;
      collect();
      most = Math.max(most, process.memoryUsage().heapUsed - before);
    }
  }
  expect(count).toBe(namespaces * each);
  // All at once they take some 20 MB.
  expect(most).toBeLessThan(4e6);
});
