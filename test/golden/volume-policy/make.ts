/**
 * `npx node test/golden/volume-policy/make.ts` asks the peer policy-answers, which is Velero's own
 * code, and writes what the tests compare with: answers.json, documents.json and scalars.json.
 */
import { writeFileSync } from 'node:fs';
import { PEERS } from '../../support/kopia.ts';
import { askVelero } from './answers.ts';
import { makeDocuments } from './documents.ts';
import { pack } from './packed.ts';
import { ofScalars, SCALARS } from './scalars.ts';
import { makeCases, makeWorld } from './world.ts';

const program = `${PEERS}/bin/policy-answers`;
const write = (name: string, value: unknown): void => {
  writeFileSync(new URL(name, import.meta.url), `${JSON.stringify(value, null, 1)}\n`);
};

const SEED = 20261125;
const world = makeWorld(SEED);
const cases = makeCases(SEED, 120);
write('answers.json', { world, cases, answers: askVelero(program, world, cases).map(pack) });

const empty = { volumes: [], claims: [], pods: [] };
const texts = [...new Set(makeDocuments(SEED, 3000))];
const verdicts = askVelero(
  program,
  empty,
  texts.map((policies) => ({ policies, parseOnly: true })),
);
const documents = texts.map((text, i) => ({ text, error: verdicts[i]?.error ?? '' }));
const REFUSED_MAX = 400;
write('documents.json', [
  ...documents.filter(({ error }) => error === ''),
  ...documents.filter(({ error }) => error !== '').slice(0, REFUSED_MAX),
]);
write('scalars.json', ofScalars(program, SCALARS));
