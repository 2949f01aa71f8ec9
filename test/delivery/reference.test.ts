import { readFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { format } from 'prettier';
import { expect, it } from 'vitest';
import { commandReference } from '../../src/cli/reference/reference.ts';
import { createProgram } from '../../src/cli/run.ts';

it('docs/cli.md says what --help says (npm run build:docs)', async () => {
  const page = await readFile(new URL('../../docs/cli.md', import.meta.url), 'utf8');
  const made = await format(commandReference(createProgram()), {
    parser: 'markdown',
    printWidth: 100,
  });
  // Prettier's width changes nothing of tables and code.
  const words = (text: string): string[] => text.split(/\s+/);
  expect(words(page)).toEqual(words(made));
  expect(page).toContain('## snapshot create');
  expect(page).not.toContain('data-mover backup');
  // Two different flags have this name: a verb on a repository has its own.
  expect(page.match(/`--stall-timeout <duration>`/g)).toHaveLength(2);
});

it('a verb that is added alone has the help that it has among all verbs', () => {
  const helpOf = (command: Command): string[] => [
    command.helpInformation(),
    ...command.commands.flatMap(helpOf),
  ];
  const whole = createProgram().commands;
  expect(whole.length).toBeGreaterThan(20);
  for (const command of whole) {
    const alone = createProgram(command.name()).commands;
    const found = alone.find((each) => each.name() === command.name()) ?? expect.fail();
    expect(helpOf(found)).toEqual(helpOf(command));
  }
  expect(createProgram('snapshot').commands.map((each) => each.name())).toEqual(['snapshot']);
  // For a misspelt verb, the message suggests one of all verbs.
  expect(createProgram('snapshto').commands).toHaveLength(whole.length);
});
