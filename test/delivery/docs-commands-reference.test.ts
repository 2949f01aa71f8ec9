import { it } from 'vitest';
import { commandLinePage } from './docs-pages/command-line.ts';
import { followedPages } from './docs-pages/following.ts';
import { installLongshore } from './docs-pages/prepared.ts';

const PORT = 28_800;

followedPages('examples of the reference do what is said of them', PORT, (follow, before) => {
  before(installLongshore);
  it('docs/cli.md', () => follow(commandLinePage));
});
