import { existsSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { isCode } from '../../src/base/index.ts';
import { parseVolumePolicies } from '../../src/volume-policy/index.ts';
import { veleroViewOf, viewOf } from '../../src/volume-policy/volume-facts.ts';
import { factsOfPv, factsOfPvc } from '../../src/volume-policy/index.ts';
import { type Answer, askVelero } from '../golden/volume-policy/answers.ts';
import { askOurs } from '../golden/volume-policy/ask-ours.ts';
import { makeDocuments } from '../golden/volume-policy/documents.ts';
import { pack, type PackedAnswer } from '../golden/volume-policy/packed.ts';
import { textOf } from '../golden/volume-policy/scalars.ts';
import { type Case, makeCases, makeWorld, type World } from '../golden/volume-policy/world.ts';
import { PEERS } from '../support/kopia.ts';

const golden = <T>(name: string): T =>
  JSON.parse(
    readFileSync(new URL(`../golden/volume-policy/${name}`, import.meta.url), 'utf8'),
  ) as T;

const PROGRAM = `${PEERS}/bin/policy-answers`;
const hasPeer = existsSync(PROGRAM) || process.env.REQUIRE_PEERS === '1';
const SEED = Number(process.env.SEED ?? 1);

/** '' where it is taken. */
function refusalOf(text: string): string {
  try {
    parseVolumePolicies(text);
    return '';
  } catch (error) {
    if (isCode(error, 'BAD_VOLUME_POLICY')) return error.message;
    throw error;
  }
}

it('answers as Velero about each volume, by the views that Velero has', async () => {
  const { world, cases, answers } = golden<{
    world: World;
    cases: Case[];
    answers: PackedAnswer[];
  }>('answers.json');
  expect(answers.length).toBeGreaterThan(100);
  for (const [i, each] of cases.entries()) {
    const ours = pack(await askOurs(world, each, 'velero'));
    expect({ case: each, ...ours }).toEqual({ case: each, ...answers[i] });
  }
});

it('answers as Velero by the joined view too, wherever that is the same', async () => {
  const { world, cases } = golden<{ world: World; cases: Case[] }>('answers.json');
  const pvs = new Map(world.volumes.map((pv) => [pv.metadata.name, factsOfPv(pv)]));
  const isJoined = world.claims.map((item) => {
    const pvc = factsOfPvc(item);
    const pv = pvc.phase === 'Bound' ? pvs.get(pvc.volumeName) : undefined;
    const [ours, theirs] = [viewOf({ pv, pvc }), veleroViewOf({ pv, pvc })];
    return ours.capacity === theirs.capacity && ours.storageClass === theirs.storageClass;
  });
  expect(isJoined.filter(Boolean).length).toBeGreaterThan(8);
  let others = 0;
  for (const each of cases) {
    const ours = await askOurs(world, each, 'joined');
    const theirs = await askOurs(world, each, 'velero');
    for (const kind of ['claimSnapshots', 'claimCustom', 'claimActions'] as const) {
      for (const [i, isSame] of isJoined.entries()) {
        if (isSame) expect(ours[kind]?.[i]).toBe(theirs[kind]?.[i]);
        else if (ours[kind]?.[i] !== theirs[kind]?.[i]) others++;
      }
    }
  }
  // The views matter.
  expect(others).toBeGreaterThan(10);
});

it('takes the documents that Velero takes, and no others', () => {
  const documents = golden<{ text: string; error: string }[]>('documents.json');
  expect(documents.filter(({ error }) => error === '').length).toBeGreaterThan(100);
  const wrong = documents
    .map(({ text, error }) => ({ text, velero: error, ours: refusalOf(text) }))
    .filter(({ velero, ours }) => (velero === '') !== (ours === ''));
  expect(wrong).toEqual([]);
});

// After a change: npx vitest run test/volume-policy/velero-answers.test.ts -u, and read the
// difference.
it('says of each document what is wrong, where Velero says the first fault', async () => {
  const refused = golden<{ text: string; error: string }[]>('documents.json').filter(
    ({ error }) => error !== '',
  );
  const pages = refused.slice(0, 60).map(({ text, error }) => {
    const velero = error.replace(/^.*?ConfigMap velero\/b: /, '').replaceAll(/\s*\n\s*/g, ' ');
    const ours = refusalOf(text).replace(/^invalid resource policies in the document: /, '');
    return `${text}  Velero: ${velero}\n  ours:   ${ours.replaceAll('; line', ';\n          line')}\n`;
  });
  await expect(pages.join('\n')).toMatchFileSnapshot('../golden/volume-policy/refusals.txt');
});

it('reads values without quotes as Velero does', () => {
  const scalars = golden<[string, string][]>('scalars.json');
  expect(scalars.length).toBeGreaterThan(70);
  expect(scalars.map(([scalar]) => [scalar, textOf(scalar)])).toEqual(scalars);
});

it.skipIf(!hasPeer)(
  'agrees with the real Velero about cases that nobody has seen yet',
  async () => {
    const world = makeWorld(SEED);
    const cases = makeCases(SEED, 40);
    const differences: object[] = [];
    for (const [i, theirs] of askVelero(PROGRAM, world, cases).entries()) {
      const each = cases[i];
      if (!each) continue;
      const ours: Answer = await askOurs(world, each, 'velero');
      if (JSON.stringify(pack(ours)) !== JSON.stringify(pack(theirs))) {
        differences.push({ case: each, ours: pack(ours), theirs: pack(theirs) });
      }
    }
    expect(differences).toEqual([]);
    const texts = makeDocuments(SEED, 1000);
    const asked = texts.map((policies) => ({ policies, parseOnly: true }));
    const verdicts = askVelero(PROGRAM, { volumes: [], claims: [], pods: [] }, asked);
    const wrong = texts.filter(
      (text, i) => (refusalOf(text) === '') !== ((verdicts[i]?.error ?? '') === ''),
    );
    expect(wrong).toEqual([]);
  },
);
