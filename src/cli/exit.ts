/** The contract of the command line. */
export const ExitCode = { done: 0, failed: 1, usage: 2, partly: 3, interrupted: 130 } as const;
