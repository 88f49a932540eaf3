"""An MPI cluster for notebooks that cannot hang them: guarded `%%px`, hang reports, exercises."""
