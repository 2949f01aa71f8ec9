import { expect, it } from 'vitest';
import { sentencesIn, sentencesOf } from '../support/sentences.ts';

// After a change: npm test -- test/delivery/sentences.test.ts -u, and read the difference.
it('every sentence that users can read is in test/golden/sentences.txt', async () => {
  const files = sentencesIn('src').map(({ file, texts }) =>
    [file, ...texts.map((text) => `  ${text}`)].join('\n'),
  );
  const page = `Every sentence that users can read, by source file. CONTRIBUTING.md says how to update it.\n\n${files.join('\n\n')}\n`;
  await expect(page).toMatchFileSnapshot('../golden/sentences.txt');
});

it('sentences are found wherever they are made, with their placeholders', () => {
  const source = `
    import { x } from 'some package';
    type Kind = 'two words';
    throw new UsageError(\`cannot read \${shown(options.path)}: \${isGone ? 'it is gone' : error.message}\`);
    log.warn({ path }, 'a file went away');
    program.description('snapshots').option('--repo <location>', 'where ' + it + ' is');
    const row = \`\${hasMore ? \`\${count('more file')} left\` : ''}\`;
    const header = { accept: 'application/json', via: names.join(', ') };
    const again = 'a file went away';
    const help = 'first line\\n\\nsecond line';
  `;
  expect(sentencesOf(source)).toEqual([
    'cannot read {path}: {it is gone|{message}}',
    'a file went away',
    'snapshots',
    'where {it} is',
    '{{more file} left|}',
    'more file',
    'first line\\n\\nsecond line',
  ]);
});
