-- Three theories of the same neurons
-- Accuracy on addition when every late neuron takes a theory's prediction: heuristics (bag), a
-- helix, or Fourier components (waves). The theories have equal numbers of terms per neuron.
select parameters, value as accuracy, theory
from theories
where
    subject = $subject and operator = 'add' and what = 'accuracy'
    and theory in ('bag', 'helix', 'waves')
order by parameters, theory
