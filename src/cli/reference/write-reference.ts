import { writeFileSync } from 'node:fs';
import { commandReference } from './reference.ts';
import { createProgram } from '../run.ts';

writeFileSync(new URL('../../../docs/cli.md', import.meta.url), commandReference(createProgram()));
