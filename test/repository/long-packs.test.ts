import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { Secret } from '../../src/base/index.ts';
import { FORMAT_BLOB, planMemory } from '../../src/repository/index.ts';
import { deriveFormatKey, openFormat, sealFormat } from '../../src/repository/format/keys.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';

const work = tempDirectory('long-packs');
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

/** As `kopia repository create --max-pack-size-mb` makes it. */
async function setPackSize(repo: string, maxPackSize: number): Promise<void> {
  const path = join(repo, `${FORMAT_BLOB}.f`);
  const outer = JSON.parse(fs.readFileSync(path, 'utf8')) as Record<string, string>;
  const uniqueId = Buffer.from(outer['uniqueID'] ?? '', 'base64');
  const key = await deriveFormatKey(new Secret(PASSWORD), outer['keyAlgo'] ?? '', uniqueId);
  const sealed = Buffer.from(outer['encryptedBlockFormat'] ?? '', 'base64');
  const inner = JSON.parse(openFormat(key, uniqueId, sealed).toString()) as { format: object };
  const changed = { ...inner, format: { ...inner.format, maxPackSize } };
  const again = sealFormat(key, uniqueId, Buffer.from(JSON.stringify(changed)));
  const written = { ...outer, encryptedBlockFormat: again.toString('base64') };
  fs.writeFileSync(path, JSON.stringify(written));
}

it.each([
  ['few', 2, 512],
  ['many', 64, 65_536],
])('a repository of long packs takes no more memory, with %s threads', async (name, cpus, mib) => {
  const memory = planMemory(mib * 2 ** 20, cpus);
  const repo = join(work, name);
  await createTest(repo);
  const usual = await openTest(repo, { memory });
  const usualBytes = usual.dataPath?.arena.bytes.length ?? 0;
  await usual.close();
  await setPackSize(repo, 120 << 20);
  const tree = join(work, `${name}-tree`);
  fs.mkdirSync(tree);
  for (let i = 0; i < 5; i++) fs.writeFileSync(join(tree, `${i}`), noise(`${name} ${i}`, 8 << 20));
  await using repository = await openTest(repo, { memory });
  expect(repository.dataPath?.arena.bytes.length).toBeLessThanOrEqual(usualBytes);
  const { rootEntry, counters } = await backUp(repository, tree);
  expect(counters.errors).toBe(0);
  await restore(repository, rootEntry, join(work, `${name}-out`));
  assertSameTree(tree, join(work, `${name}-out`));
});
